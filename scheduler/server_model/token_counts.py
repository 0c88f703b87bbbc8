"""How many tokens were given under each account since that was asked last, where every step gives a sequence one token.

An account's count grows by the number of its decoding sequences with every step, so it is kept as that number and as what
is owed beside it: a step costs nothing here, a report O(accounts). A sequence knows what of the count is its own
(``unreported``) as far as it differs from the others', which is from when it starts or stops until the next report.
"""

from __future__ import annotations

from scheduler.server_model.protocol import Sequence


class _Account:
    __slots__ = ("decoding", "owed")

    def __init__(self) -> None:
        self.decoding = 0
        self.owed = 0


class TokenCounts:
    """Steps are counted as the server model does. Only sequences with an account (not 0) come here."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._reported_step = 0
        self._changed: list[Sequence] = []

    def starts(self, sequence: Sequence, step: int) -> None:
        """It gave a token at the end of ``step`` and gives one with every step from then on."""
        account = self._accounts.get(sequence.account)
        if account is None:
            account = self._accounts[sequence.account] = _Account()
        account.decoding += 1
        self._add(account, sequence, 1 + self._reported_step - step)

    def stops(self, sequence: Sequence, step: int) -> None:
        """``step`` was the last one that it gave a token with, for now."""
        account = self._accounts[sequence.account]
        account.decoding -= 1
        self._add(account, sequence, step - self._reported_step)

    def _add(self, account: _Account, sequence: Sequence, tokens: int) -> None:
        account.owed += tokens
        sequence.unreported += tokens
        self._changed.append(sequence)

    def leaves(self, sequence: Sequence) -> None:
        """A stopped one ends: what was not reported of it stays so."""
        account = self._accounts.get(sequence.account)
        if account is not None:
            account.owed -= sequence.unreported
        sequence.reported = sequence.generated - sequence.unreported

    def take(self, step: int) -> list[tuple[int, int]]:
        """(account, tokens) since this was asked last, as of the end of ``step``."""
        steps = step - self._reported_step
        found = []
        for number, account in self._accounts.items():
            tokens = account.owed + account.decoding * steps
            if tokens:
                found.append((number, tokens))
                account.owed = 0
        self._reported_step = step
        for sequence in self._changed:
            sequence.unreported = 0
        self._changed.clear()
        return found
