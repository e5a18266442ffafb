# The C extension; `c.py` says what each entry does. Everything is positional.

def add(row: int, data: int, n: int, dtype: int, repeat: int, threads: int, /) -> None: ...
def add_strided(
    row: int,
    data: int,
    dtype: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    repeat: int,
    threads: int,
    /,
) -> None: ...
def add_copy(row: int, data: int, copy_to: int, n: int, dtype: int, threads: int, /) -> None: ...
def add_difference(row: int, new: int, old: int, n: int, dtype: int, threads: int, /) -> None: ...
def add_many(
    rows: int,
    datas: int,
    ns: int,
    dtypes: int,
    copies: int,
    olds: int,
    count: int,
    threads: int,
    /,
) -> None: ...
def merge(row: int, other: int, /) -> None: ...
def count_bins(table: int, indices: int, n: int, offsets: int, /) -> int: ...
def pack(
    table: int,
    indices: int,
    n: int,
    offsets: int,
    counts: int,
    sums: int,
    extrema: int,
    bin_ids: int,
    bin_counts: int,
    empties: bool,
    /,
) -> None: ...
def same(a: int, b: int, n_bytes: int, /) -> bool: ...
def launch(
    entry: int, function: int, blocks: int, threads: int, stream: int, /, *arguments: int
) -> int: ...
def call(entry: int, /, *arguments: int) -> int: ...
def entry() -> int: ...
def paths() -> list[str]: ...
def use_path(name: str, /) -> None: ...
def thread_runtime() -> str: ...
