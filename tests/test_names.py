"""Names of many objects, as bytes one behind the other."""

import pickle

import numpy as np
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.storage.names import Names, packed

TEXTS = st.lists(st.text("ab_.019٣²é", min_size=1, max_size=9), max_size=30, unique=True)


@examples(300)
@given(texts=TEXTS, above=st.sampled_from(["", "data/"]))
def test_names_are_the_texts_that_they_were_made_of(texts, above):
    found = packed(Names.of(texts).encoded(), above, np.arange(len(texts)))
    assert [*found] == [above + text for text in texts]
    assert [*pickle.loads(pickle.dumps(found))] == [*found] == [found[k] for k in range(-len(texts), 0)]


def test_pieces_are_joined():
    pieces = [Names.of(["a", "bc"], np.array([1, 2])), Names.of([], np.array([], dtype=np.int64))]
    joined = Names.joined([*pieces, Names.of(["", "d"], np.array([3, 4]))])
    assert ([*joined], joined.addresses.tolist()) == (["a", "bc", "", "d"], [1, 2, 3, 4])
    assert ([*joined[1:3]], len(Names.joined([]))) == (["bc", ""], 0)
