"""Archives from unknown authors: nothing outside of their folder changes, and nothing is lost without a word."""

import gzip
import io
import os
import resource
import tarfile
import time

import pytest
from tests.campaigns.archives import campaign

from herringbone_contract.archives import names_in, unpack
from herringbone_contract.errors import ArchiveError, InputError


def member(name, type_=tarfile.REGTYPE, link="", content=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = type_, link, len(content)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, content


def tar(*members, form=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "into").mkdir(mode=0o750)
    return tmp_path / "into"


def unpacked(data, into, **options):
    return unpack(io.BytesIO(data), into, shown="x.tar", **options)


@pytest.mark.parametrize(
    "type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.REGTYPE]
)
@pytest.mark.parametrize("name", [".", "./", "./.", ""])
def test_a_member_in_place_of_the_folder_is_refused(folder, type_, name):
    """`download` skipped the member "." before it looked at its kind, and later members went behind it."""
    data = tar(member(name, type_, "../outside", mode=0o644, mtime=1))
    with pytest.raises(ArchiveError, match=r"replaces its own folder|not a file, a folder or a link"):
        unpacked(data, folder)
    assert not folder.is_symlink()


def test_mode_and_time_of_the_folder_stay(folder):
    before = folder.stat()
    unpacked(tar(member("./", tarfile.DIRTYPE, mode=0o644, mtime=1), member(".", tarfile.DIRTYPE, mode=0)), folder)
    assert (folder.stat().st_mode, folder.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


REFUSED = [
    (member("../x"), "outside"),
    (member("/x"), "outside"),
    (member("a/../../x"), "outside"),
    (member("l", tarfile.SYMTYPE, "/etc"), "a link to /etc, outside"),
    (member("l", tarfile.SYMTYPE, ".."), "outside"),
    (member("a/l", tarfile.SYMTYPE, "../../x"), "outside"),
    (member("l", tarfile.SYMTYPE, "a/../../x"), "outside"),
    (member("l", tarfile.LNKTYPE, "../outside/precious"), "outside"),
    (member("l", tarfile.LNKTYPE, "nothing"), "a hard link to nothing, which is no file"),
    (member("l", tarfile.LNKTYPE, "good-link"), "no file of the archive"),
    (member("good-link/x"), "'good-link' is no folder"),
    (member("good-link/x", tarfile.LNKTYPE, "good"), "no folder"),
    (member("good/x"), "'good' is no folder"),
    (member("d"), "a folder of that name"),
    (member("d", tarfile.SYMTYPE, "good"), "a folder of that name"),
    (member("p", tarfile.FIFOTYPE), "not a file, a folder or a link"),
    (member("p", tarfile.BLKTYPE), "not a file, a folder or a link"),
    (member("d/" * 300 + "x"), "more than 200 folders deep"),
    (member("x" * 256), "too long"),
    (member("l", tarfile.SYMTYPE, ""), "empty"),
]


@pytest.mark.parametrize(("wicked", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_member_is_refused_by_name_and_the_others_arrive(folder, wicked, reason):
    good = [member("d/", tarfile.DIRTYPE), member("good", content=b"1"), member("good-link", tarfile.SYMTYPE, "d")]
    data = tar(*good, wicked, member("after", content=b"2"))
    refused = []
    unpacked(data, folder, refused=lambda name, why: refused.append((name, why)))
    assert [name for name, _ in refused] == [wicked[0].name.rstrip("/")]
    assert reason in refused[0][1]
    assert (folder / "after").read_bytes() == b"2"
    assert os.listdir(folder.parent / "outside") == ["precious"]
    with pytest.raises(ArchiveError, match=r"x.tar: member .* is refused: "):
        unpacked(data, folder)


def test_files_links_and_attributes_arrive(folder):
    data = tar(
        member("bin/run", content=b"#!", mode=0o7777, mtime=5),
        member("secret", content=b"1", mode=0),
        member("bin/again", tarfile.LNKTYPE, "bin/run"),
        member("latest", tarfile.SYMTYPE, "./bin/run"),
        member("bin/up", tarfile.SYMTYPE, "../secret"),
        member("secret", content=b"22"),
    )
    unpacked(data, folder)
    assert {path.relative_to(folder).as_posix(): path.lstat().st_mode & 0o7777 for path in folder.rglob("*")} == {
        "bin": 0o755,
        "bin/run": 0o755,
        "bin/again": 0o755,
        "bin/up": 0o777,
        "latest": 0o777,
        "secret": 0o644,
    }
    assert (folder / "bin/run").stat().st_mtime == 5
    assert (folder / "bin/up").read_bytes() == b"22"
    assert (folder / "bin/again").samefile(folder / "latest")


def test_the_size_limit_counts_what_headers_announce(folder):
    bomb = gzip.compress(tar(member("zeros", content=bytes(3 << 20))))
    path = folder.parent / "bomb.tar.gz"
    path.write_bytes(bomb)
    with pytest.raises(ArchiveError, match=r"larger than the space for them on the disk of .*into; unpack it by hand"):
        unpack(path, folder, shown="model bomb.tar.gz", limit=1 << 20)
    assert os.listdir(folder) == []
    # Without a limit of the caller's, it is the disk's free space.
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    header = member("huge")[0]
    header.size = free
    with pytest.raises(ArchiveError, match="larger than the space"):
        unpacked(header.tobuf() + bytes(1024), folder)


def header_bombs():
    def header(type_, size):
        info = tarfile.TarInfo("x")
        info.type, info.size = type_, size
        return info.tobuf(tarfile.GNU_FORMAT)

    yield header(tarfile.GNUTYPE_LONGNAME, 1 << 33) + bytes(1 << 20)
    yield header(tarfile.XHDTYPE, 1 << 33) + bytes(1 << 20)
    yield header(tarfile.XGLTYPE, 512) + b"20 path=xxxxxxxxxxx\n".ljust(512, b"\0")
    # Each header is the first part of the next one.
    yield (header(tarfile.XHDTYPE, 512) + b"20 path=xxxxxxxxxxx\n".ljust(512, b"\0")) * 3_000
    sparse = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    sparse[482] = 1
    sparse[148:156] = b" " * 8
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    yield bytes(sparse) + (bytes(504) + b"\1" + bytes(7)) * 20_000
    for size in ("-1", "-512", "-1024"):
        yield tar(member("a", content=b"x" * 2_000), member("b", pax_headers={"size": size}))


@pytest.mark.parametrize("number", range(8))
def test_headers_take_neither_memory_nor_time(folder, number):
    data = list(header_bombs())[number]
    start, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArchiveError, match="damaged or incomplete"):
        unpacked(data, folder)
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 << 10


def test_content_of_zeros_is_no_end(folder):
    """The end of a tar is a block of zeros, and so may be a file."""
    unpack(io.BytesIO(tar(member("a", content=bytes(512)), member("b", content=b"2"))), folder, shown="x")
    assert (folder / "b").read_bytes() == b"2"


def test_damage_between_members_is_no_end(folder):
    """`tarfile` takes a damaged header behind the first member for the end, so half of a model was lost in silence."""
    data = bytearray(tar(member("a", content=b"1"), member("b", content=b"2")))
    data[1024] ^= 255
    with pytest.raises(ArchiveError, match="damaged or incomplete"):
        unpacked(bytes(data), folder)
    with pytest.raises(ArchiveError, match="ends too early"):
        unpacked(tar(member("a", content=b"1"))[:1024], folder)
    # The checksum of the compressed data is compared, too.
    packed = bytearray(gzip.compress(tar(member("a", content=b"1"))))
    packed[-6] ^= 255
    (folder.parent / "x.tar.gz").write_bytes(packed)
    with pytest.raises(ArchiveError, match="CRC"):
        unpack(folder.parent / "x.tar.gz", folder, shown="x.tar.gz")


def test_names_and_a_missing_file(folder):
    path = folder.parent / "x.tar"
    path.write_bytes(tar(member("./a"), member("b/c")))
    assert names_in(path, shown="x") == ["./a", "b/c"]
    with pytest.raises(InputError, match=r"code archive .*nowhere does not exist on this host"):
        unpack(folder / "nowhere", folder, shown=f"code archive {folder}/nowhere")


def test_wicked_archives_change_nothing_outside():
    """The short form of `tests/campaigns/archives.py`."""
    report = campaign(600, seed=1)
    assert report["breaches"] == []
    # Each outcome occurs: the campaign tests more than the first check.
    assert min(report["whole"], report["in part"], report["refused"]) > 40
