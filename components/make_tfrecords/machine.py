"""Memory by address and CRC32C by instruction, for compiled functions."""

from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from components.make_tfrecords.jit import compiled

# An int64 or uint64 of the machine: numba tells them apart by use, mypy cannot.
Integer = Any

POLYNOMIAL = 0x82F63B78  # CRC32C, reflected (RFC 3720)


def _loader(width: Integer, result: Any) -> Any:
    @intrinsic
    def load(typing_context, address):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            pointer = builder.inttoptr(arguments[0], ir.IntType(width).as_pointer())
            value = builder.load(pointer, align=1)
            size = context.get_value_type(result).width
            return builder.zext(value, ir.IntType(size)) if size > width else value

        return result(types.int64), generate

    return load


def _storer(width: Integer) -> Any:
    @intrinsic
    def store(typing_context, address, value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            address, value = arguments
            kind = ir.IntType(width)
            if value.type.width > width:
                value = builder.trunc(value, kind)
            builder.store(value, builder.inttoptr(address, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return store


# load(address) -> value; store(address, value). Nothing is aligned, nothing is checked.
load_u8 = _loader(8, types.uint64)
load_i32 = _loader(32, types.int64)  # zero-extended: offsets are never negative
load_u32 = _loader(32, types.uint64)
load_u64 = _loader(64, types.uint64)
load_i64 = _loader(64, types.int64)
store_u8 = _storer(8)
store_u32 = _storer(32)
store_u64 = _storer(64)


@intrinsic
def num_bits(typing_context, value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Bits up to the highest one that is set; 1 for zero."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        one = ir.Constant(ir.IntType(64), 1)
        leading = builder.ctlz(builder.or_(arguments[0], one), ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(ir.IntType(64), 64), leading)

    return types.int64(types.uint64), generate


@intrinsic
def copy_memory(typing_context, target, source, size):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Copy `size` bytes between addresses that do not overlap."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        target, source, size = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder, builder.inttoptr(target, byte), builder.inttoptr(source, byte), size, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def move_memory(typing_context, target, source, size):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Copy `size` bytes between addresses that may overlap."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        target, source, size = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memmove(
            builder, builder.inttoptr(target, byte), builder.inttoptr(source, byte), size, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _instruction(width: Integer) -> Any:
    """SSE4.2's crc32: crc of `width` more bits."""
    name = f"llvm.x86.sse42.crc32.{'64.64' if width == 64 else '32.8'}"
    state = ir.IntType(64 if width == 64 else 32)

    @intrinsic
    def step(typing_context, crc, value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            crc, value = arguments
            if width < 64:
                crc, value = builder.trunc(crc, state), builder.trunc(value, ir.IntType(width))
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(state, [state, value.type]), name
            )
            result = builder.call(function, [crc, value])
            return result if width == 64 else builder.zext(result, ir.IntType(64))

        return types.uint64(types.uint64, types.uint64), generate

    return step


def _make_tables() -> npt.NDArray[np.uint64]:
    """Tables of slicing-by-8 (Kounavis and Berry, 2005), shape [8, 256]."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for slice_ in range(1, 8):
        previous = tables[slice_ - 1]
        tables[slice_] = (previous >> np.uint64(8)) ^ tables[0][previous & np.uint64(255)]
    return tables


_TABLES = _make_tables()
_crc_64, _crc_8 = _instruction(64), _instruction(8)


@compiled
def crc32c_by_instruction(crc: Integer, address: Integer, size: Integer) -> Integer:
    """Extend the CRC32C `crc` (0 at the start) by `size` bytes; needs SSE4.2."""
    crc = np.uint64(crc) ^ np.uint64(0xFFFFFFFF)
    end = address + size
    while address + 8 <= end:
        crc = _crc_64(crc, load_u64(address))
        address += 8
    while address < end:
        crc = _crc_8(crc, load_u8(address))
        address += 1
    return crc ^ np.uint64(0xFFFFFFFF)


@compiled
def crc32c_by_table(crc: Integer, address: Integer, size: Integer) -> Integer:
    """Extend the CRC32C `crc` (0 at the start) by `size` bytes on any machine."""
    crc = np.uint64(crc) ^ np.uint64(0xFFFFFFFF)
    low = np.uint64(255)
    end = address + size
    while address + 8 <= end:
        word = load_u64(address) ^ crc
        crc = np.uint64(0)
        for slice_ in range(8):
            crc ^= _TABLES[7 - slice_, (word >> np.uint64(8 * slice_)) & low]
        address += 8
    while address < end:
        crc = (crc >> np.uint64(8)) ^ _TABLES[0, (crc ^ load_u8(address)) & low]
        address += 1
    return crc ^ np.uint64(0xFFFFFFFF)


HAS_INSTRUCTION = bool(llvmlite.binding.get_host_cpu_features().get("sse4.2"))
crc32c = crc32c_by_instruction if HAS_INSTRUCTION else crc32c_by_table
