"""Files that hotloop 0.1 wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "golden" / "written_by_0_1.tar.gz"


def written_by_0_1(name: str, folder: Path) -> Path:
    """A copy of this file or folder of the archive, in `folder`."""
    with tarfile.open(ARCHIVE) as archive:
        members = [one for one in archive.getmembers() if one.name == name or one.name.startswith(f"{name}/")]
        archive.extractall(folder, members, filter="data")
    return folder / name
