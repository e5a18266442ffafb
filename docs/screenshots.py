"""Takes the pictures in docs/images: each page of the explorer, light and dark, at two widths.

    python docs/screenshots.py                 # records the runs first, which takes some minutes
    python docs/screenshots.py --runs FOLDER   # keeps them there, and takes those that are there

Needs the environment that `make test` makes, and Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).with_name("images")
SIZES: Final = ((1280, 800), (1920, 1080))

VIEWS: Final = {
    "runs": "#/runs",
    "overview": "#/overview?run={broken}",
    "explore": "#/explore?run={writer}&at=blocks.0&kind=output"
    "&pins=A:blocks.0.attn.qkv,B:blocks.0.mlp&step=120",
    "graph": "#/explore?run={images}&at=blocks.0&kind=output&on=blocks.0.conv2",
    "layers": "#/layers?run={writer}&kind=output_grad&site=blocks.1.mlp/output_grad/0&step=120",
}
ONLY_WIDE: Final = {"graph"}
HIDE_FOLDER: Final = """() => {
  const code = document.querySelector('#sonde').shadowRoot.querySelector('.runs .hint code');
  if (code) code.textContent = 'runs';
}"""
"""The path of the runs on this machine is not shown."""
HOVERED: Final = {"graph": '[data-node][data-label="norm1"]'}


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes the pictures in docs/images.")
    parser.add_argument("--runs", help="where the runs are, or will be")
    parser.add_argument("--train", nargs=2, metavar=("NAME", "END"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train_images(*arguments.train)
        return
    with tempfile.TemporaryDirectory() as made:
        work = Path(arguments.runs or made).resolve()
        (work / "runs").mkdir(parents=True, exist_ok=True)
        record(work)
        with training(work), serving(work) as address:
            take(address)


# -- runs -----------------------------------------------------------------------------------------


def record(work: Path) -> None:
    """One run of each kind, unless it is there: well, broken, for images, failed, killed."""
    demo = (sys.executable, "-m", "sonde", "demo", "--no-view", "--dir", "runs", "--name")
    wanted = {
        "broken": (*demo, "broken", "--broken"),
        "images-failed": training_command("images-failed", "error"),
        "images-killed": training_command("images-killed", "kill"),
        "images": training_command("images", "well"),
        "writer": (*demo, "writer", "--every", "2"),
    }
    for name, command in wanted.items():
        if not (work / "runs" / name).exists():
            print(f"recording {name}", flush=True)
            subprocess.run(command, cwd=work, check=False, capture_output=True)


def training_command(name: str, end: str) -> tuple[str, ...]:
    return (sys.executable, str(Path(__file__).resolve()), "--train", name, end)


@contextmanager
def training(work: Path) -> Iterator[None]:
    """A run that is being recorded while the pictures are taken."""
    shutil.rmtree(work / "runs" / "images-now", ignore_errors=True)
    process = subprocess.Popen(training_command("images-now", "never"), cwd=work)
    try:
        time.sleep(20)
        yield
    finally:
        process.kill()
        process.wait()


def train_images(name: str, end: str) -> None:
    """A small residual network learns to tell noisy patterns apart."""
    import torch
    from torch import nn
    from torch.nn import functional

    import sonde

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.act = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside = self.act(self.norm1(self.conv1(x)))
            return self.act(x + self.norm2(self.conv2(inside)))

    class Images(nn.Module):
        def __init__(self, width: int = 24, classes: int = 10) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, width, 3, padding=1)
            self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.head = nn.Linear(width, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.blocks(functional.relu(self.stem(x)))
            return self.head(self.pool(x).flatten(1))

    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    patterns = torch.randn(10, 3, 16, 16)
    with sonde.watch(model, optimizer, every=2, dir="runs", name=name, log="all") as watch:
        for step in range(100_000 if end == "never" else 300):
            labels = torch.randint(10, (32,))
            images = patterns[labels] + 1.5 * torch.randn(32, 3, 16, 16)
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
            if step == 120 and end == "error":
                raise RuntimeError("the data ended")
            if step == 180 and end == "kill":
                watch.flush()
                os.kill(os.getpid(), signal.SIGKILL)


# -- pictures -------------------------------------------------------------------------------------


@contextmanager
def serving(work: Path) -> Iterator[str]:
    """`sonde view` on the runs; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "view", "runs", "--no-browser", "--no-token", "--port=0"],
        cwd=work,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield next(
            found.group() for line in process.stdout if (found := re.search(r"http://\S+", line))
        )
    finally:
        process.terminate()
        process.wait()


def take(address: str) -> None:
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.set_default_timeout(120_000)
                listed = page.request.get(f"{address}api/runs").json()["spec"]["runs"]
                ids = {run["name"]: run["id"] for run in listed}
                for name, view in VIEWS.items():
                    if name in ONLY_WIDE and width < SIZES[-1][0]:
                        continue
                    page.goto("about:blank")
                    page.goto(address + view.format_map(ids))
                    page.wait_for_selector('#sonde[data-ready="1"]', state="attached")
                    page.evaluate(HIDE_FOLDER)
                    if name in HOVERED:
                        page.hover(HOVERED[name])
                        page.wait_for_timeout(300)
                    save(page.screenshot(), IMAGES / f"{name}-{scheme}-{width}.png")
                page.close()
        browser.close()


def save(png: bytes, path: Path) -> None:
    """Written as small as it can be without a loss, where Pillow is there."""
    try:
        import io

        from PIL import Image
    except ImportError:
        path.write_bytes(png)
    else:
        Image.open(io.BytesIO(png)).convert("RGB").save(path, optimize=True)
    print(f"{path.name} {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main()
