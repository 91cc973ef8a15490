"""Write HDF5 files that are described as plain data; needs h5py and NumPy alone, so that scripts can quote it."""

import itertools
import os

import h5py
import hdf5plugin
import numpy as np
from h5py import h5a, h5d, h5f, h5p, h5s, h5t, h5z

PLUGINS = {name.lower(): getattr(hdf5plugin, name)() for name in ("LZ4", "Zstd", "Blosc", "Bitshuffle")}
INTEGERS = {False: h5z.SO_INT, True: h5z.SO_FLOAT_DSCALE}
FLOATS = {"bfloat16": (2, 15, 7, 8, 7, 127), "e4m3": (1, 7, 3, 4, 3, 7), "e5m2": (1, 7, 2, 5, 2, 15)}
TIMES = ("M8[s]", "M8[ms]")
RAW = {"float", "integer", "time", "field", "unused", "complex"}


def stored_type(kind):
    """Make an HDF5 type: of NumPy's text, "str", or a dict for what needs more words."""
    if kind == "str":
        return h5t.py_create(h5py.string_dtype(), logical=True)
    if kind in TIMES:
        return h5t.py_create(h5py.opaque_dtype(np.dtype(kind)), logical=True)
    if isinstance(kind, str):
        return h5t.py_create(np.dtype(kind), logical=True)
    if "enum" in kind:
        meanings = kind.get("meanings", {"A": 0, "B": 1, "C": 7})
        return h5t.py_create(h5py.enum_dtype(meanings, np.dtype(kind["enum"])), logical=True)
    if RAW & set(kind):
        return unusual_type(kind)
    if "bits" in kind:
        found = h5t.py_create(np.dtype(kind["bits"])).copy()
        found.set_precision(kind["precision"])
        found.set_offset(kind["offset"])
        return found
    if "array" in kind:
        return h5t.array_create(stored_type(kind["array"]), tuple(kind["shape"]))
    if "vlen" in kind:
        return h5t.vlen_create(stored_type(kind["vlen"]))
    members = [(name, stored_type(member)) for name, member in kind["members"]]
    gap, order = kind.get("gap", 0), kind.get("order") or range(len(members))
    sizes = [member.get_size() + gap for _, member in members]
    found = h5t.create(h5t.COMPOUND, sum(sizes))
    for k in order:  # in which members are declared, wherever they are in an element
        found.insert(members[k][0].encode(), sum(sizes[:k]), members[k][1])
    return found


def unusual_type(kind):
    """Make a type of which h5py has no word: small floats, integers of three bytes, times, bit fields, complex."""
    if "complex" in kind:
        return {"<f4": h5t.COMPLEX_IEEE_F32LE, "<f8": h5t.COMPLEX_IEEE_F64LE}[kind["complex"]]
    if "field" in kind:
        return {1: h5t.STD_B8LE, 2: h5t.STD_B16LE, 4: h5t.STD_B32LE}[kind["field"]]
    if "unused" in kind:
        return h5t.decode(h5t.STD_B16LE.encode()[:-2] + b"\x0c\0")  # 12 bits of 16
    if "time" in kind:
        return h5t.UNIX_D32LE
    if "integer" in kind:
        found = h5t.STD_I32LE.copy()
        found.set_size(kind["integer"])
        return found
    nbytes, sign, mantissa, exponent_bits, mantissa_bits, bias = FLOATS[kind["float"]]
    found = h5t.IEEE_F32LE.copy()
    found.set_fields(sign, mantissa, exponent_bits, 0, mantissa_bits)
    found.set_ebias(bias)
    found.set_precision(8 * nbytes)
    found.set_size(nbytes)
    return found


def is_raw(kind):
    """Tell whether a type, or what it is made of, is written by its bytes."""
    if not isinstance(kind, dict):
        return False
    inner = [kind[name] for name in ("array", "vlen") if name in kind] + [one for _, one in kind.get("members", ())]
    return bool(RAW & set(kind)) or any(map(is_raw, inner))


def raw_numbers(kind, count, rng):
    """Draw the bytes of elements: numbers where they are whole ones or IEEE's, any bits where they are not."""
    nbytes = stored_type(kind).get_size()
    if isinstance(kind, str):
        return np.ascontiguousarray(numbers(np.dtype(kind), (count,), rng)).view("u1").reshape(count, nbytes)
    if "members" in kind:
        parts = [raw_numbers(one, count, rng) for _, one in kind["members"]]
        return np.concatenate(parts, axis=1)
    if "array" in kind:
        return raw_numbers(kind["array"], count * int(np.prod(kind["shape"])), rng).reshape(count, nbytes)
    if "complex" in kind:
        return numbers(np.dtype(kind["complex"]), (2 * count,), rng).view("u1").reshape(count, nbytes)
    return rng.integers(0, 256, (count, nbytes), "u1")


def numbers(dtype, shape, rng):
    """Draw values of a type."""
    count = int(np.prod(shape))
    if dtype.names:
        found = np.zeros(shape, dtype)
        for name in dtype.names:
            base, inner = dtype[name].base, dtype[name].shape
            found[name] = numbers(base if inner else dtype[name], (*shape, *inner), rng)
        return found
    if dtype.kind == "O":
        base, found = h5py.check_vlen_dtype(dtype), np.empty(count, dtype=object)
        for k, n in enumerate(rng.integers(0, 5, count).tolist()):
            found[k] = letters(rng, n).decode() if base is str else numbers(base, (n,), rng)
        return found.reshape(shape)
    if dtype.kind in "SV":
        raw = np.frombuffer(rng.integers(97, 122, count * dtype.itemsize, "u1").tobytes(), dtype)
        return raw.reshape(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype("?")
    if dtype.kind in "ui":
        known = h5py.check_enum_dtype(dtype)
        most = min(np.iinfo(dtype.newbyteorder("=")).max // 2, 999)
        drawn = rng.integers(0, most + 1, shape) - (most // 2 if dtype.kind == "i" else 0)
        return (drawn % 2 if known else drawn).astype(dtype)
    if dtype.kind in "mM":
        return rng.integers(0, 1000, shape).astype("i8").astype(dtype)
    found = rng.integers(-400, 400, shape) / 4
    return (found + 1j * rng.integers(-9, 9, shape) if dtype.kind == "c" else found).astype(dtype)


def letters(rng, count):
    """Draw a text."""
    return bytes(rng.integers(97, 122, count).tolist())


def add_filters(creation, names, kind):
    """Put filters into a creation list."""
    for name in names:
        if name == "shuffle":
            creation.set_shuffle()
        elif name == "gzip":
            creation.set_deflate(4)
        elif name == "fletcher32":
            creation.set_fletcher32()
        elif name == "szip":
            creation.set_szip(h5z.SZIP_NN_OPTION_MASK, 8)
        elif name == "scaleoffset":
            creation.set_scaleoffset(INTEGERS[kind.get_class() == h5t.FLOAT], 0 if kind.get_class() != h5t.FLOAT else 2)
        elif name in ("lzf", "nbit"):
            creation.set_filter({"lzf": h5z.FILTER_LZF, "nbit": h5z.FILTER_NBIT}[name], h5z.FLAG_OPTIONAL)
        else:
            plugin = PLUGINS[name]
            creation.set_filter(plugin["compression"], h5z.FLAG_OPTIONAL, tuple(plugin["compression_opts"]))


def add_dataset(file, node, folder):
    """Write one dataset."""
    kind, shape, rng = stored_type(node["type"]), tuple(node["shape"]), np.random.default_rng(node.get("seed", 0))
    layout, chunks, maxshape = node.get("layout", "contiguous"), node.get("chunks"), node.get("maxshape")
    is_opaque, raw = node["type"] in TIMES, is_raw(node["type"])
    dtype = None if raw else h5py.opaque_dtype(np.dtype(node["type"])) if is_opaque else kind.dtype
    creation = h5p.create(h5p.DATASET_CREATE)
    if chunks:
        creation.set_chunk(tuple(chunks))
        add_filters(creation, node.get("filters", ()), kind)
    elif layout == "compact":
        creation.set_layout(h5d.COMPACT)
    elif layout == "external":
        nbytes = int(np.prod(shape)) * kind.get_size()
        creation.set_external(os.path.join(folder, f"raw{len(os.listdir(folder))}.bin").encode(), 0, nbytes)
    if node.get("alloc"):
        creation.set_alloc_time(getattr(h5d, f"ALLOC_TIME_{node['alloc']}"))
        creation.set_fill_time(getattr(h5d, f"FILL_TIME_{node['fill_time']}"))
    if node.get("fill") is not None:
        creation.set_fill_value(np.asarray(node["fill"], dtype))
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    limits = maxshape and tuple(h5s.UNLIMITED if n is None else n for n in maxshape)
    begun = tuple(node.get("first") or shape)
    space = h5s.create_simple(begun, limits) if shape else h5s.create(h5s.SCALAR)
    path = node["path"]
    if raw:
        made = h5d.create(file.id, path.encode(), kind, space, dcpl=creation, lcpl=links)
        values = np.ascontiguousarray(raw_numbers(node["type"], int(np.prod(shape)), rng))
        if node.get("written", 1) and values.size and not node.get("first"):
            made.write(h5s.ALL, h5s.ALL, values, mtype=kind)
        return h5py.Dataset(made)
    base, inner = (dtype.base, dtype.shape) if dtype.subdtype else (dtype, ())
    if "data" in node:
        data = [tuple(one) for one in node["data"]] if dtype.names else node["data"]
        values = np.empty(shape, dtype=object) if dtype.kind == "O" else np.asarray(data, dtype)
        for k, value in enumerate(node["data"]) if dtype.kind == "O" else ():  # NumPy would make rows of lists
            values[k] = np.asarray(value, h5py.check_vlen_dtype(dtype)) if isinstance(value, list) else value
    else:
        values = numbers(base, (*shape, *inner), rng)
        if node.get("power"):  # tiny or huge numbers
            values = (values * 10.0 ** node["power"]).astype(base)
    if layout == "virtual":
        name = f"behind_{path.replace('/', '_')}"
        file.create_dataset(name, shape, dtype=dtype)[...] = values
        where = h5py.VirtualLayout(shape, dtype)
        where[...] = h5py.VirtualSource(".", name.replace("%", "%%"), shape, dtype)
        return file.create_virtual_dataset(path, where, fillvalue=node.get("fill"))
    dataset = h5py.Dataset(h5d.create(file.id, path.encode(), kind, space, dcpl=creation, lcpl=links))
    if node.get("first"):
        dataset[tuple(map(slice, shape))] = values[tuple(map(slice, dataset.shape))]
        dataset.resize(shape)
    write_values(dataset, values, node, rng)
    return dataset


def write_values(dataset, values, node, rng):
    """Write all of a dataset, some of its chunks, or none; some chunks past the filters."""
    share, chunks, shape = node.get("written", 1), node.get("chunks"), dataset.shape
    if not share or not values.size:
        return
    if shape == () or (share == 1 and not node.get("masked")):
        if dataset.dtype.kind == "O" and h5py.check_vlen_dtype(dataset.dtype) is not str:
            for place in np.ndindex(shape):
                dataset[place] = values[place]
        else:
            dataset[...] = values[()]
        return
    every = chunks or (max(1, shape[0] // 2), *shape[1:])
    for start in itertools.product(*(range(0, n, c) for n, c in zip(shape, every, strict=True))):
        if rng.random() >= share:
            continue
        box = tuple(slice(k, k + c) for k, c in zip(start, every, strict=True))
        if node.get("masked") and rng.random() < 0.4 and not is_there(dataset, start):
            whole = np.zeros(every, dataset.dtype)
            part = values[box]
            whole[tuple(slice(0, n) for n in part.shape)] = part
            skipped = (1 << len(node.get("filters", ()))) - 1
            dataset.id.write_direct_chunk(start, whole.tobytes(), filter_mask=skipped)
        elif dataset.dtype.kind == "O":
            for place in itertools.product(*(range(*part.indices(n)) for part, n in zip(box, shape, strict=True))):
                dataset[place] = values[place]
        else:
            dataset[box] = values[box]


def is_there(dataset, start):
    """Tell whether a chunk has a place already: libhdf5 keeps its old mask, where the new bytes are as many."""
    return dataset.id.get_chunk_info_by_coord(start).byte_offset is not None


def add_attribute(file, node):
    """Write one attribute."""
    owner, kind = file[node["path"]], stored_type(node["type"])
    space = h5s.create_simple(tuple(node["shape"])) if node["shape"] else h5s.create(h5s.SCALAR)
    if is_raw(node["type"]):
        values = raw_numbers(node["type"], int(np.prod(node["shape"])), np.random.default_rng(node.get("seed", 0)))
        h5a.create(owner.id, node["attr"].encode(), kind, space).write(values, kind)
        return
    dtype = kind.dtype
    base, inner = (dtype.base, dtype.shape) if dtype.subdtype else (dtype, ())
    values = numbers(base, (*node["shape"], *inner), np.random.default_rng(node.get("seed", 0)))
    if "data" in node and dtype.kind == "O":
        owner.attrs[node["attr"]] = node["data"]
        return
    if dtype.kind == "O" or dtype.subdtype:
        owner.attrs.create(node["attr"], values if dtype.subdtype or values.shape else values.item(), dtype=dtype)
        return
    h5a.create(owner.id, node["attr"].encode(), kind, space).write(np.asarray(node.get("data", values), dtype))


def add_node(file, node, folder):
    """Write what a node describes: a link, a group, an attribute or a dataset."""
    if "soft" in node:
        file[node["path"]] = h5py.SoftLink(node["soft"])
    elif "external" in node:
        file[node["path"]] = h5py.ExternalLink(*node["external"])
    elif "attr" in node:
        add_attribute(file, node)
    elif "type" in node:
        add_dataset(file, node, folder)
    else:
        add_group(file, node)


def add_group(file, node):
    """Write a group, with others in it that nobody reads."""
    creation = h5p.create(h5p.GROUP_CREATE)
    if node.get("track"):
        creation.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    h5py.h5g.create(file.id, node["path"].encode(), lcpl=links, gcpl=creation)
    for k in range(node.get("beside", 0)):
        file.create_group(f"{node['path']}/beside{k}")


def write_file(folder, described):
    """Write a file into a folder."""
    access = h5p.create(h5p.FILE_ACCESS)
    bounds = [getattr(h5f, f"LIBVER_{name.upper()}") for name in described.get("libver", ["earliest", "latest"])]
    access.set_libver_bounds(*bounds)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_userblock(described.get("userblock", 0))
    if described.get("track"):
        creation.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
    path = os.path.join(folder, described["name"])
    if any("complex" in repr(node.get("type")) for node in described["nodes"]):
        access.set_libver_bounds(h5f.LIBVER_EARLIEST, h5f.LIBVER_LATEST)  # these came with HDF5 2.0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with h5py.File(h5f.create(path.encode(), h5f.ACC_TRUNC, creation, access)) as file:
        for node in described["nodes"]:
            add_node(file, node, folder)
        damaged = described.get("damaged")
        where = h5py.h5o.get_info(file[damaged].id).addr + file.userblock_size if damaged else None
    if where is not None:
        damage(path, where)
    return path


def corrupt(path, name, place):
    """Change a byte in the middle of a chunk of a dataset; tell whether there is one."""
    with h5py.File(path) as file:
        made = file[name].id if name in file else None
        count = made.get_num_chunks() if made else 0
        info = made.get_chunk_info(place % count) if count else None
    if info is None:
        return False
    with open(path, "r+b") as file:  # one byte: of several, fletcher32 may not tell
        file.seek(info.byte_offset + info.size // 2)
        byte = file.read(1)[0]
        file.seek(info.byte_offset + info.size // 2)
        file.write(bytes([byte ^ 0x55]))
    return True


def damage(path, where):
    """Change a byte of an object header, so that h5py raises: inside of the checksum, or the version of an old one."""
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[where + (20 if data[where : where + 4] == b"OHDR" else 0)] ^= 0x40
        file.seek(0)
        file.write(data)
