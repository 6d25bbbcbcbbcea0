"""What a browser shows of a page, as a picture."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

LIMIT_S = 300
WIDTH = 1200


def need_browser() -> str:
    """The path of headless Chromium; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine (Debian: apt install chromium)")
    return found


def shown(page: str, folder: Path, height: int) -> NDArray[np.floating[Any]]:
    """The page as Chromium paints it: [height, WIDTH, 3], red, green and blue, 0..1. Writes into `folder`."""
    browser, html, png = need_browser(), folder / "page.html", folder / "page.png"
    html.write_text(page, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{height}", "--hide-scrollbars",
               f"--screenshot={png}", html.as_uri()]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder)
    assert png.is_file(), done.stderr
    picture: NDArray[np.floating[Any]] = matplotlib.image.imread(png)[..., :3]
    assert picture.shape == (height, WIDTH, 3)
    return picture
