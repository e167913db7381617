"""Products whose rows come from all ranks, while they come.

A stream works by itself while all multiprocessors are taken: its copies are a copy engine's, and it
writes the words that a product waits for. torch copies contiguous memory so, but columns by a
kernel; hence the driver's own copy of two dimensions.
"""

import ctypes
import functools
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from .._core.errors import UnavailableError, UnsupportedError, invalid_argument
from .._core.formats import Format, FormatLike, format_of
from .._core.ops import ceil_divide
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import DTYPES
from .._ops.gemm import Arrivals, gemm
from .._ops.quantize import quantize
from .._ranks import ranks_of, require_agreement_now
from .._ranks.wire import gathered_rows
from ..nn.recipes.kernels import has_warpgroups

_OPERATION: Final = "GatheredProduct"
_ALIGNMENT: Final = 256  # bytes; TMA wants 16


class GatheredProduct:
    """gather(x) · wᵀ, where each rank has a shard of x's rows and wants all rows of the product, as
    in the first layer of a tensor-parallel block with sequence parallelism.

    >>> product = GatheredProduct(tokens // ranks, hidden)
    >>> y = product(x, w8)  # x: [tokens / ranks, hidden], y: [tokens, outputs of this rank]

    On Hopper GPUs of one host the gather hides behind the product: that begins with the own shard
    and goes on with those of rank + 1, rank + 2 …, as copy engines bring them from the other GPUs
    (gemm()'s `arrivals`). Elsewhere, on a CPU too, the gather comes first.

    rows: of each rank's shard; the same on all ranks.
    columns: of x, K.
    format: how x is cast, with scales "1x128" or "channel".
    group: the process group; None: the default one. All its ranks make this object and call it
        together, in the same order.
    device: of x; None: the current CUDA device where there is one, else the CPU.
    overlap: None: where that is possible; False: gather first. True: UnsupportedError where it is
        not possible.

    Where it overlaps it owns 2 · ranks · rows · columns bytes of symmetric memory, and as many
    again / 32 for scales of 1x128: two calls may be under way, so that no rank overwrites what
    another reads. Calls belong on one stream, and cannot be captured in a CUDA graph. Ranks wait
    for each other at the beginning of a call. The product takes all multiprocessors until the last
    shard is there: no rank may make its copy depend on a kernel that it queues behind the product.
    A product of few rows is split along K by gemm() alone, and has other bits then. NVLink
    multicast is not used; TORCH_SYMM_MEM_DISABLE_MULTICAST=1 keeps torch from setting it up.

    Raises InvalidArgumentError, which names the argument, and UnsupportedError.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        format: FormatLike = "1x128",
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        overlap: bool | None = None,
    ) -> None:
        for argument, size in (("rows", rows), ("columns", columns)):
            if size < 1:
                raise invalid_argument(_OPERATION, argument, "at least 1", repr(size))
        self.format: Format = format_of(_OPERATION, format)
        if self.format.granularity not in ("1x128", "channel"):
            expected = "one of granularity 1x128 or channel, whose scales belong to rows"
            raise invalid_argument(_OPERATION, "format", expected, str(self.format))
        self._group = ranks_of(_OPERATION, "group", group)
        self.rank, self.ranks = self._group.rank, self._group.size
        facts = {"rows": rows, "columns": columns, "format": self.format}
        require_agreement_now(_OPERATION, self._group, **facts)
        self.rows, self.columns = rows, columns
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        why_not = self._why_not()
        if overlap and why_not:
            raise UnsupportedError(f"{_OPERATION}: argument 'overlap': {why_not}")
        self._overlapped: _Overlapped | None = None
        if overlap is not False and not why_not:
            self._overlapped = _Overlapped(self)

    @property
    def overlaps(self) -> bool:
        """True if the gather hides behind the product."""
        return self._overlapped is not None

    def __call__(
        self,
        x: Tensor | ScaledTensor,
        w: ScaledTensor,
        *,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """The rows of all ranks times w, [ranks · rows, N], on every rank.

        x: this rank's shard, [rows, columns] float32, float16 or bfloat16, which is cast straight
            to where the others read it; or codes and scales of the object's format, which are
            copied there.
        w: [N, columns], of any granularity. Each rank may have its own, of any N.
        bias, out_dtype, out: as in gemm().
        There is no gradient.
        """
        self._check(x)
        options: dict[str, Any] = {"bias": bias, "out_dtype": out_dtype, "out": out}
        if self._overlapped is not None:
            return self._overlapped(x, w, options)
        shard = x if isinstance(x, ScaledTensor) else quantize(x, self.format)
        whole = gathered_rows(_OPERATION, shard, self._group, 0, same_scales=False)
        y: Tensor = gemm(whole, w, **options)
        return y

    def _why_not(self) -> str:
        """Why the gather cannot hide behind the product; empty: it can."""
        if self.ranks == 1:
            return "expected more than one rank, got 1"
        if self.device.type != "cuda":
            return f"expected GPUs, whose memory is symmetric, got {self.device}"
        if not has_warpgroups(self.device):
            major, minor = torch.cuda.get_device_capability(self.device)
            return (
                "expected GPUs of compute capability 9.0 (H100, H200), whose kernels wait for rows,"
                f" got {major}.{minor}"
            )
        return ""

    def _check(self, x: Tensor | ScaledTensor) -> None:
        shape = tuple(x.shape)
        if shape != (self.rows, self.columns):
            expected = f"shape {[self.rows, self.columns]}, a rank's shard"
            raise invalid_argument(_OPERATION, "x", expected, f"{list(shape)}")
        device = x.data.device if isinstance(x, ScaledTensor) else x.device
        if device != self.device:
            raise invalid_argument(_OPERATION, "x", f"a tensor on {self.device}", str(device))
        if not isinstance(x, ScaledTensor):
            return
        expected = f"codes of {self.format.dtype} with {self.format.granularity} scales"
        if x.granularity != self.format.granularity:
            raise invalid_argument(_OPERATION, "x", expected, f"{x.granularity} scales")
        if x.data.dtype != DTYPES[self.format.dtype]:
            raise invalid_argument(_OPERATION, "x", expected, str(x.data.dtype))


class _Overlapped:
    """The symmetric memory of a GatheredProduct, and its calls.

    Each rank has room for all rows, twice, for calls by turns. A rank casts its shard into its
    place, waits for the others, and has copy engines fetch theirs from the same place of theirs. A
    rank has passed the wait of the next call only after its own copies of this one: so each half is
    free when its turn comes again.
    """

    def __init__(self, product: GatheredProduct) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        self._product = product
        rows, columns = product.ranks * product.rows, product.columns
        self._codes_bytes = _rounded(rows * columns)
        self._units = 1 if product.format.granularity == "channel" else ceil_divide(columns, 128)
        self._scale_rows = ceil_divide(rows, 4) * 4
        half = self._codes_bytes + _rounded(4 * self._scale_rows * self._units)
        with torch.cuda.device(product.device):
            memory = symmetric.empty(2 * half, dtype=torch.uint8, device=product.device)
            name: Any = product._group.name  # torch takes a str for a name of a group
            self._handle = symmetric.rendezvous(memory, name)
            own = torch.zeros(product.ranks, dtype=torch.int32)
            own[product.rank] = 1
            self._own_flag = own.to(product.device)
            self._flags = torch.zeros_like(self._own_flag)
            self._copies: torch.cuda.Stream = torch.cuda.Stream(product.device)  # type: ignore[no-untyped-call]
        memories = [
            memory
            if rank == product.rank
            else self._handle.get_buffer(rank, (2 * half,), torch.uint8)
            for rank in range(product.ranks)
        ]
        self._halves = [
            _Half([self._matrix(each[turn * half : (turn + 1) * half]) for each in memories], self)
            for turn in range(2)
        ]
        self._turn = 0

    def __call__(
        self, x: Tensor | ScaledTensor, w: ScaledTensor, options: dict[str, Any]
    ) -> Tensor:
        with torch.cuda.device(self._product.device):
            rows, arrivals = self.begin(x)
            try:
                y: Tensor = gemm(rows, w, arrivals=arrivals, **options)
            finally:  # other ranks go on, if this one's arguments are wrong
                self.end()
        return y

    def begin(self, x: Tensor | ScaledTensor) -> tuple[ScaledTensor, Arrivals]:
        """All rows, of which the own shard is there, and what will be: others are on their way."""
        flags, copies, half = self._flags, self._copies, self._halves[self._turn]
        self._turn ^= 1
        flags.copy_(self._own_flag)
        self._put(x, half.own)
        self._handle.barrier()
        copies.wait_stream(torch.cuda.current_stream())
        for peer, matrices in half.fetches:
            for matrix in matrices:
                matrix.begin(copies)
            set_flag(flags, peer, copies)
        return half.rows, Arrivals(flags, self._product.rank)

    def end(self) -> None:
        """Puts all that the stream does from now on behind the copies."""
        torch.cuda.current_stream().wait_stream(self._copies)

    def _matrix(self, memory: Tensor) -> ScaledTensor:
        """All rows, in one half of a rank's memory."""
        product = self._product
        rows, columns = product.ranks * product.rows, product.columns
        data = memory[: rows * columns].view(rows, columns).view(DTYPES[product.format.dtype])
        floats = memory[self._codes_bytes :].view(torch.float32)
        if product.format.granularity == "channel":
            return ScaledTensor(data, floats[:rows], "channel")
        scale = floats.as_strided((rows, self._units), (1, self._scale_rows))
        return ScaledTensor(data, scale, "1x128")

    def _shard(self, matrix: ScaledTensor, rank: int) -> ScaledTensor:
        begin, end = rank * self._product.rows, (rank + 1) * self._product.rows
        return ScaledTensor(matrix.data[begin:end], matrix.scale[begin:end], matrix.granularity)

    def _put(self, x: Tensor | ScaledTensor, place: ScaledTensor) -> None:
        if isinstance(x, ScaledTensor):
            place.data.view(torch.uint8).copy_(x.data.view(torch.uint8))
            place.scale.copy_(x.scale)
        else:
            quantize(x, self._product.format, out=place)


class _Half:
    """The views and copies that one of the calls by turns needs of the memories [rank] of its rows,
    made once: these calls are short."""

    def __init__(self, of_ranks: list[ScaledTensor], overlapped: _Overlapped) -> None:
        product, shard = overlapped._product, overlapped._shard
        self.rows = of_ranks[product.rank]
        self.own = shard(self.rows, product.rank)
        self.fetches: list[tuple[int, tuple[MatrixCopy, ...]]] = []
        for step in range(1, product.ranks):
            peer = (product.rank + step) % product.ranks
            target, source = shard(self.rows, peer), shard(of_ranks[peer], peer)
            codes = MatrixCopy(target.data, source.data)
            scales = MatrixCopy(_matrix(target.scale), _matrix(source.scale))
            self.fetches.append((peer, (codes, scales)))


def _matrix(scale: Tensor) -> Tensor:
    return scale[None] if scale.dim() == 1 else scale


def _rounded(count: int) -> int:
    return ceil_divide(count, _ALIGNMENT) * _ALIGNMENT


_UNIFIED: Final = 4  # CU_MEMORYTYPE_UNIFIED: an address says itself whose memory it is


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(name: str, result: int) -> None:
    if result != 0:
        raise UnavailableError(f"GatheredProduct: {name}() failed with CUDA error {result}")


class MatrixCopy:
    """A copy of a matrix into another of its shape and strides, whose rows or columns are
    contiguous; to be made again and again."""

    def __init__(self, target: Tensor, source: Tensor) -> None:
        self._memory = target, source
        if target.stride(1) != 1:
            target, source = target.T, source.T
        height, width = target.shape
        size = target.element_size()
        self._request = _Copy2D(
            src_type=_UNIFIED,
            src=source.data_ptr(),
            src_pitch=source.stride(0) * size,
            dst_type=_UNIFIED,
            dst=target.data_ptr(),
            dst_pitch=target.stride(0) * size,
            width=width * size,
            height=height,
        )

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Behind what the stream has to do."""
        handle = ctypes.c_void_p(stream.cuda_stream)
        result = _driver().cuMemcpy2DAsync_v2(ctypes.byref(self._request), handle)
        _check("cuMemcpy2DAsync", result)


def set_flag(flags: Tensor, place: int, stream: torch.cuda.Stream) -> None:
    """flags[place] = 1, once all that was queued on `stream` before is done and can be seen."""
    address = flags.data_ptr() + place * flags.element_size()
    _check(
        "cuStreamWriteValue32",
        _driver().cuStreamWriteValue32_v2(
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(1),
            ctypes.c_uint(0),
        ),
    )
