"""Lists of options: commas divide parts, but not within brackets and quotes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.lists import split_list

words = st.text("aX0=.", min_size=1, max_size=3)
quoted = st.sampled_from("'\"").flatmap(
    lambda quote: st.text("aX, ([{)]}'\"", max_size=4).map(lambda text: f"{quote}{text.replace(quote, '')}{quote}")
)
parts = st.recursive(
    words | quoted,
    lambda inner: st.builds(
        lambda name, pair, some, end: f"{name}{pair[0]}{','.join(some)}{pair[1]}{end}",
        words,
        st.sampled_from(["()", "[]", "{}"]),
        st.lists(inner, max_size=3),
        st.just("") | quoted | words,
    ),
    max_leaves=6,
)


@settings(max_examples=settings().max_examples // 3)
@given(st.lists(parts, max_size=4), st.sampled_from([",", ", ", " ,", ",,", " , , "]), st.sampled_from(["", ",", " "]))
def test_parts_that_are_joined_with_commas_are_split_into_themselves(some: list[str], comma: str, end: str) -> None:
    assert split_list(end + comma.join(some) + end) == some


def test_a_comma_within_brackets_or_quotes_divides_nothing() -> None:
    assert split_list("a(b,[c,{d,e},f],g),h") == ["a(b,[c,{d,e},f],g)", "h"]
    assert split_list("a(b)(c),d") == ["a(b)(c)", "d"]
    assert split_list("""'a(,"',b",'[",c""") == ["""'a(,"'""", """b",'[\"""", "c"]
    assert split_list(" , ,") == split_list("") == []
