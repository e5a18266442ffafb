"""Makes the moving picture at the top of the README: the page while a network trains.

    python docs/training_picture.py

Trains a small residual network, opens the page in Chromium, and takes a picture every second: first
of all gradients over time, then of one layer. Writes docs/images/training-{light,dark}.webp, below
2 MB each. Needs the environment that `make test` makes, and Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image
from screenshots import HIDE_FOLDER, IMAGES, serving, training

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE: Final = (1280, 800)
SHOWN: Final = (960, 600)
MAX_BYTES: Final = 2_000_000
FRAME_MS: Final = 350
LAST_MS: Final = 2000
SCENES: Final = (
    ("#/overview?run={run}&kind=param_grad&stat=rms", 14),
    ("#/explore?run={run}&at=blocks.0&kind=output&pins=A:blocks.0.conv1,B:blocks.0.conv2", 6),
    ("#/layers?run={run}&kind=output_grad&site=blocks.1.conv2/output_grad/0", 6),
)
"""Addresses of the page, and how many pictures are taken of each."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    for scheme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "runs").mkdir()
            with training(work), serving(work) as address, sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                page = browser.new_page(
                    viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=scheme
                )
                page.set_default_timeout(120_000)
                frames = taken(page, address)
                browser.close()
        save(frames, IMAGES / f"training-{scheme}.webp")


def taken(page: Page, address: str) -> list[Image.Image]:
    """Pictures of each scene, a second apart while the training goes on."""
    listed = page.request.get(f"{address}api/runs").json()["spec"]["runs"]
    frames = []
    for view, count in SCENES:
        page.goto("about:blank")
        page.goto(address + view.format(run=listed[0]["id"]))
        page.wait_for_selector('#sonde[data-ready="1"]', state="attached")
        page.evaluate(HIDE_FOLDER)
        for _ in range(count):
            page.wait_for_timeout(1000)
            png = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            frames.append(png.resize(SHOWN, Image.Resampling.LANCZOS))
    return frames


def save(frames: list[Image.Image], path: Path) -> None:
    """Write an animated WebP, at the highest quality that stays below the limit."""
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    for quality in (80, 65, 50, 35):
        frames[0].save(
            path,
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
            quality=quality,
            method=6,
        )
        if path.stat().st_size < MAX_BYTES:
            break
    print(f"{path.name} {len(frames)} frames, {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main()
