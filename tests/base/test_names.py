"""What a misspelt name most likely means."""

from support.each import for_each

from h5stream.base.texts import nearest_names

MEANT = [
    ("train/imgs", ["train/images", "img/x"], ["train/images"]),
    ("obs/celltyp2", ["obs/cell_type2", "celltyp/x"], ["obs/cell_type2"]),
    ("labelz", ["train/labels", "lab/x1", "lab/x2"], ["train/labels"]),
    ("train_label", ["train/labels", "train/x"], ["train/labels"]),
    ("observations", ["actions", "obs/image", "obs/state"], ["obs/image", "obs/state"]),
    ("qqq", ["actions", "obs/image"], []),
]


@for_each(MEANT)
def test_the_nearest_name_is_one_spelled_like_it_before_one_in_a_group_that_begins_so(name, candidates, meant):
    assert nearest_names(name, candidates) == meant
