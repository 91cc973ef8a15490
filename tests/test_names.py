"""Names of many objects, as bytes one behind the other."""

import pickle

import numpy as np
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.storage.names import Names, packed
from h5stream.storage.whereabouts import Links

TEXTS = st.lists(st.text("ab_.019٣²é", min_size=1, max_size=9), max_size=30, unique=True)


@examples(300)
@given(texts=TEXTS, above=st.sampled_from(["", "data/"]), other=st.text(max_size=9))
def test_names_are_found_again_as_texts_are(texts, above, other):
    texts = sorted(texts, key=str.encode)
    names, numbers = Names.of(texts), np.arange(len(texts))
    found = packed(map(str.encode, texts), above, numbers)
    assert [*found] == [above + text for text in texts]
    assert [*pickle.loads(pickle.dumps(found))] == [*found] == [found[k] for k in range(-len(texts), 0)]
    links = Links(names=names.text, edges=names.edges, addresses=numbers)
    wanted = [*texts[::2], other, *texts[1::2]]
    assert links.find(Names.of(wanted)).tolist() == [texts.index(one) if one in texts else -1 for one in wanted]


def test_pieces_are_joined():
    pieces = [Names.of(["a", "bc"], np.array([1, 2])), Names.of([], np.array([], dtype=np.int64))]
    joined = Names.joined([*pieces, Names.of(["", "d"], np.array([3, 4]))])
    assert ([*joined], joined.addresses.tolist()) == (["a", "bc", "", "d"], [1, 2, 3, 4])
    assert ([*joined[1:3]], len(Names.joined([]))) == (["bc", ""], 0)
