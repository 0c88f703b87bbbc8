"""Common English words: short, lower-case, and one token each (with the space before them) for most tokenizers."""

from __future__ import annotations

COMMON_WORDS: tuple[str, ...] = tuple(
    """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
    you were all her she there would their we him been has when who will no more if out so up said what its about than
    into them can only other time new some could these two may first then do any like my now over such our man me even
    most made after also did many off before must well back through years much where your way down should because long
    each just state those people too little still good world make year own see men work part under last place right
    life great house same come day between while never both home small found thought went say once high upon
    school every another being used number course water until always away something fact though less put think hand
    enough far took head yet government system better set told nothing night end why called find going look asked
    later knew point next program city business give group toward young days let room side social given present
    several order national possible rather second face per among form important often things looked early white case
    large big need four within felt along children saw best church ever least power development light thing seemed
    family interest want members others mind country area done turned although open service certain kind problem
    began different door thus help means sense whole matter line general human company free local center behind field
    question money study week north south east west road river blue green red black table paper letter music
    """.split()  # noqa: SIM905 (a paragraph of words reads better than 284 quoted ones)
)
