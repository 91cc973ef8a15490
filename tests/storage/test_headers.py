"""Headers, chunk indexes and links that are read from the file's bytes, against h5py."""

from amounts import examples
from header_files import HeaderFile, compare_with_h5py, header_files, write_file
from hypothesis import given


@examples(400)
@given(case=header_files())
def test_what_is_read_of_headers_is_what_h5py_says(case: HeaderFile, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "case.h5"
    write_file(case, path)
    counts = compare_with_h5py(path)
    assert counts["object: not understood"] == 0
    assert counts["object: h5py refuses"] == 0
    assert counts["attribute: must be asked for"] == 0
