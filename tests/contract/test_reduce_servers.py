"""The addresses of servers, encoded and decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ContractError
from herringbone_contract.reduce_servers import ReduceServer, decode, encode

_word = st.text(st.characters(exclude_characters="=,", exclude_categories=["Cs", "Cc"]), min_size=1)
_servers = st.lists(st.builds(ReduceServer, _word, _word, st.integers(0, 65_535)))


@given(_servers)
def test_decode_undoes_encode(servers):
    assert decode(encode(servers)) == tuple(servers)


@pytest.mark.parametrize("text", ["algo-1", "algo-1=10.0.0.1", "=10.0.0.1:1", "a=b:c", "a=b:1,,c=d:2"])
def test_anything_else_is_named(text):
    with pytest.raises(ContractError, match="HOST=ADDRESS:PORT"):
        decode(text)
