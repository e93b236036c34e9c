"""Images: turned upright, of the declared depth, channels and frames, or refused with advice."""

import io

import numpy as np
import pytest
from PIL import Image

from components.contracts.errors import InputError
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from tests.make_tfrecords.reading import columns, rows

ORIENTATION = 0x0112
# A picture whose every corner differs: rows of (red, green, blue).
CORNERS = np.zeros((2, 3, 3), np.uint8)
CORNERS[0, 0] = CORNERS[0, 1] = 255
CORNERS[1, 2] = 128


@pytest.fixture
def convert(tmp_path):
    """Convert pictures given as bytes by class and name."""

    def run(pictures, **options):
        for name, data in pictures.items():
            path = tmp_path / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        options = {"splits": {"all": 1.0}, "processes": 1, **options}
        source = str(tmp_path / "in")
        return make_tfrecords(
            ConvertOptions(source=source, label="label", **options), str(tmp_path / "out")
        )

    return run


def encoded(pixels, kind="PNG", **options):
    data = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(data, kind, **options)
    return data.getvalue()


def two_classes(data, other=None):
    return {"a/1.png": data, "b/1.png": other or data}


# What turning back undoes, by the number in the file (EXIF 2.3, tag 274).
TURNS = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_the_orientation_of_the_file_is_applied(convert, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    turned = np.ascontiguousarray(TURNS[orientation](CORNERS))
    dataset = convert(two_classes(encoded(turned, exif=exif), encoded(CORNERS)))
    assert dataset.schema["image"].shape == (2, 3, 3)
    for image in columns(dataset, "all")["image"]:
        np.testing.assert_array_equal(image, CORNERS)


def test_sixteen_bits_are_kept_where_they_are_declared(convert):
    deep = (np.arange(6, dtype=np.uint16) * 9999).reshape(2, 3)
    dataset = convert(two_classes(encoded(Image.fromarray(deep))), image_depth=16)
    for image in columns(dataset, "all")["image"]:
        np.testing.assert_array_equal(image[..., 0], deep)


def test_sixteen_bits_are_not_cut_to_eight_in_silence(convert):
    deep = (np.arange(6, dtype=np.uint16) * 9999).reshape(2, 3)
    with pytest.raises(InputError, match="16 bits a channel: set image_depth=16"):
        convert(two_classes(encoded(Image.fromarray(deep))))


def test_transparency_is_not_dropped_in_silence(convert):
    pixels = np.full((2, 2, 4), 200, np.uint8)
    files = two_classes(encoded(pixels))
    with pytest.raises(InputError, match="partly transparent: set image_channels=4"):
        convert(files, image_channels=3)
    image = columns(convert(files), "all")["image"][0]
    np.testing.assert_array_equal(image, pixels)


def test_grey_becomes_colour_beside_colour(convert):
    grey = np.array([[0, 90], [180, 255]], np.uint8)
    colour = np.stack([grey, grey // 2, grey], -1)
    dataset = convert(two_classes(encoded(grey), encoded(colour)))
    found = {row["label"]: np.array(row["image"]) for row in rows(dataset)}
    np.testing.assert_array_equal(found[0], np.repeat(grey[..., None], 3, -1))
    np.testing.assert_array_equal(found[1], colour)


def test_a_palette_becomes_its_colours(convert):
    colour = np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8)
    palette = Image.fromarray(colour).convert("P", palette=Image.Palette.ADAPTIVE)
    dataset = convert(two_classes(encoded(palette), encoded(colour)))
    for image in columns(dataset, "all")["image"]:
        np.testing.assert_array_equal(image, colour)


def test_an_animation_is_refused_or_its_first_frame_taken(convert):
    frames = [Image.new("RGB", (3, 2), color) for color in ("red", "blue")]
    animated = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    files = two_classes(animated, encoded(frames[0]))
    with pytest.raises(InputError, match="2 frames: set image_multi_frame=first"):
        convert(files)
    dataset = convert(files, image_multi_frame="first")
    for image in columns(dataset, "all")["image"]:
        np.testing.assert_array_equal(image, np.asarray(frames[0]))


def test_an_image_that_has_the_form_keeps_its_bytes(convert, tmp_path):
    jpeg = encoded(CORNERS, "JPEG", quality=90)
    dataset = convert(two_classes(jpeg, encoded(CORNERS)))
    assert any(jpeg in path.read_bytes() for path in (tmp_path / "out").glob("*.tfrecord"))
    sizes = dataset.schema["image"].statistics.image
    assert sizes == {"min_height": 2, "max_height": 2, "min_width": 3, "max_width": 3}


def test_images_are_brought_to_the_size_asked_for(convert):
    flat = np.full((4, 6, 3), 77, np.uint8)
    files = two_classes(encoded(flat), encoded(flat[:2, :2]))
    dataset = convert(files, image_height=3, image_width=5)
    for image in columns(dataset, "all")["image"]:
        np.testing.assert_array_equal(image, np.full((3, 5, 3), 77))
    assert dataset.schema["image"].statistics.image["max_width"] == 6


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95, 0.999])
def test_an_image_cut_anywhere_is_rejected(convert, kind, share):
    noise = np.random.default_rng(1).integers(0, 255, (40, 40, 3), np.uint8)
    whole = encoded(noise, kind)
    cut = whole[: int(len(whole) * share)]
    files = {"a/1": whole, "a/2": cut, "b/1": whole}
    dataset = convert(files, max_rejected_share=0.4)
    assert (dataset.num_rows, dataset.num_rejected, dataset.splits) == (3, 1, {"all": 2})


def test_a_table_names_images_beside_it(convert, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "pictures").mkdir()
    for name in ("x", "y"):
        (folder / "pictures" / name).write_bytes(encoded(CORNERS))
    table = b"file,age,label\npictures/x,3,cat\npictures/y,4,dog\n"
    dataset = convert({"table.csv": table}, image_column="file")
    found = {row["label"]: row for row in rows(dataset)}
    assert [found[0]["age"], found[1]["age"]] == [3, 4]
    np.testing.assert_array_equal(found[1]["file"], CORNERS)
