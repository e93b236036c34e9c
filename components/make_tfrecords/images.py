"""Images: sniffed, decoded to the last byte, brought to the declared form.

Or refused with a reason.

An encoded PNG or JPEG that already has the declared height, width, channels and depth is kept byte
by byte.
Everything else becomes a PNG, which loses nothing: other formats, palettes, CMYK, EXIF orientation
(applied), other sizes (bilinear, with anti-aliasing), other channels (grey is copied to every
colour, colour becomes luma by ITU-R 601-2, opaque alpha is dropped).
"""

import io
import struct
import warnings
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import UndecidedError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_KEPT_FORMATS = ("PNG", "JPEG")
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I")
_ORIENTATION = 0x0112
_MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")


class ImageError(Exception):
    """Why an image is refused: a clause that follows its name."""


@dataclass(kw_only=True)
class ImageEvidence:
    """What is known of a column of images: extremes of their sizes, and the channels they need."""

    min_height: int = 1 << 30
    max_height: int = 0
    min_width: int = 1 << 30
    max_width: int = 0
    num_channels: int = 1
    num_images: int = 0

    def add(self, data: bytes) -> None:
        """Take in one encoded image; what cannot be read shows nothing."""
        try:
            image = _opened(data)
            height, width = upright_size(image)
            channels = _channels_of(image)
        except (ImageError, OSError, ValueError, SyntaxError):
            return
        self.num_images += 1
        self.min_height, self.max_height = (
            min(self.min_height, height),
            max(self.max_height, height),
        )
        self.min_width, self.max_width = min(self.min_width, width), max(self.max_width, width)
        self.num_channels = max(self.num_channels, channels)

    def agrees(self, shape: tuple[int, ...], options: ConvertOptions) -> bool:
        """Whether what the options leave open is the same in all images and in `shape`."""
        height, width, channels = shape
        return (
            (options.image_height > 0 or self.min_height == self.max_height == height)
            and (options.image_width > 0 or self.min_width == self.max_width == width)
            and (options.image_channels > 0 or self.num_channels <= channels)
        )

    def merge(self, other: "ImageEvidence") -> None:
        """Add what another part of the sources shows."""
        self.num_images += other.num_images
        self.min_height = min(self.min_height, other.min_height)
        self.max_height = max(self.max_height, other.max_height)
        self.min_width = min(self.min_width, other.min_width)
        self.max_width = max(self.max_width, other.max_width)
        self.num_channels = max(self.num_channels, other.num_channels)

    def shape(self, column: str, options: ConvertOptions) -> tuple[int, int, int]:
        """Height, width and channels to convert to.

        Raises InputError if the images do not agree.
        """
        if not self.num_images:
            raise UndecidedError(f"column {column!r} holds no image that can be decoded")
        height = options.image_height or self.max_height
        width = options.image_width or self.max_width
        differs = (not options.image_height and self.min_height != self.max_height) or (
            not options.image_width and self.min_width != self.max_width
        )
        if differs:
            raise InputError(
                f"the images in {column!r} differ in size: height {self.min_height} to "
                f"{self.max_height}, width {self.min_width} to {self.max_width}. Set image_height "
                "and image_width to the size that all of them get"
            )
        return height, width, options.image_channels or self.num_channels


def is_image(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an image of a known format."""
    return head.startswith(_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width once the EXIF orientation is applied."""
    turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if turned else (image.height, image.width)


def normalized(data: bytes, feature: Feature, options: ConvertOptions) -> tuple[bytes, int, int]:
    """Bring an encoded image to the feature's shape and depth.

    Returns:
        The encoded image, and its height and width before any resizing.

    Raises:
        ImageError: it is not an image, is damaged, or is not of the declared form.
    """
    image = _opened(data)
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO" and options.image_multi_frame == "reject":
        raise ImageError(f"has {frames} frames: set image_multi_frame=first to take the first one")
    try:
        image.load()
        _check_end(image.format, data)
    except (OSError, ValueError, SyntaxError, struct.error) as error:
        raise ImageError(f"is damaged: {error}") from error
    height, width, channels = feature.shape
    size = upright_size(image)
    deep = "uint16" in feature.source_type
    _check_depth(image, data, deep)
    if _can_stay(image, data, (height, width, channels), frames):
        return data, *size
    upright = ImageOps.exif_transpose(image)
    converted = upright if deep else _with_channels(upright, channels)
    if deep and channels != 1:
        raise ImageError(
            "has 16 bits a channel and another form than declared: 16-bit colour is only kept as "
            "it is"
        )
    if converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    target = io.BytesIO()
    converted.save(target, "PNG")
    return target.getvalue(), *size


def _check_end(found: str | None, data: bytes) -> None:
    """Check what Pillow forgives and other decoders do not: the end of a PNG or JPEG is missing."""
    if found == "PNG":
        _opened(data).verify()
    # Within the compressed data FF is never followed by D9 (end of image) or DA (start of scan).
    if found == "JPEG" and data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        raise ValueError("its end is missing")


def _opened(data: bytes) -> Image.Image:
    if not data:
        raise ImageError("is an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(data))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise ImageError("is not an image of a known format") from error
    except (OSError, ValueError, SyntaxError, struct.error) as error:
        raise ImageError(f"is damaged: {error}") from error


def _channels_of(image: Image.Image) -> int:
    if _alpha(image) is not None:
        return 4
    if image.mode in ("1", "L", "LA", *_DEEP_MODES):
        return 1
    return 3


def _alpha(image: Image.Image) -> Image.Image | None:
    """The alpha channel if anything is transparent."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return None
    alpha = image.convert("RGBA").getchannel("A")
    return alpha if alpha.getextrema() != (255, 255) else None


def _depth_of(image: Image.Image, data: bytes) -> int:
    """Bits a channel in the file; Pillow itself reads 16-bit colour as 8-bit without a word."""
    if image.format == "PNG" and len(data) > 24:
        return 16 if data[24] == 16 else 8
    if image.mode in _DEEP_MODES:
        return 16
    return 32 if image.mode == "F" else 8


def _check_depth(image: Image.Image, data: bytes, deep: bool) -> None:
    depth = _depth_of(image, data)
    if depth != (16 if deep else 8):
        raise ImageError(
            f"has {depth} bits a channel: set image_depth={depth}"
            if depth == 16 or deep
            else f"has {depth} bits a channel, which cannot be kept"
        )


def _can_stay(image: Image.Image, data: bytes, shape: tuple[int, int, int], frames: int) -> bool:
    height, width, channels = shape
    modes = (MODES[channels], *(_DEEP_MODES if channels == 1 else ()))
    return (
        image.format in _KEPT_FORMATS
        and frames == 1
        and image.mode in modes
        and image.size == (width, height)
        and image.getexif().get(_ORIENTATION, 1) == 1
        and ("transparency" not in image.info)
    )


def _with_channels(image: Image.Image, channels: int) -> Image.Image:
    if channels != 4 and _alpha(image) is not None:
        raise ImageError("is partly transparent: set image_channels=4 to keep that")
    if image.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV"):
        image = image.convert("RGBA" if channels == 4 else "RGB")
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])
