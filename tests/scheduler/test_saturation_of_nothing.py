"""Rule of a mix that a server can never serve: it has no saturation, and the error says why."""

from __future__ import annotations

import pytest

from scheduler.cost import CostModel
from scheduler.request import Request
from scheduler.saturation import NothingServedError, saturation
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots


def test_a_mix_of_requests_beyond_the_kv_cache_has_no_saturation():
    server = ServerModelSpec(name="small", law=StepLaw(a_us=500.0, b_us=1.0), limits=ServerLimits(kv_tokens=600))
    mix = [
        Request(id=i, tenant="a", arrival_ns=0, prompt_tokens=595, max_tokens=8, target_output_tokens=8)
        for i in range(500)
    ]
    with pytest.raises(NothingServedError, match=r"595 \+ 8 tokens can never fit into a KV cache of 600 tokens"):
        saturation(mix, server, Slots(sequences=4), CostModel())
