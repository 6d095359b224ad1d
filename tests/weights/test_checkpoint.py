"""Checkpoints against transformers' and safetensors' own reading, and damaged ones."""

import json
import shutil

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from pelton.formats.gguf import GGUFTensor
from pelton.kernels.cpu import extension
from pelton.weights.checkpoint import open_checkpoint
from weights.gguf_samples import SIZES, default_tensors, write

UNSIGNED = gguf.GGUFValueType.UINT32
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def read_all(path, dtype=torch.float32):
    checkpoint = open_checkpoint(path, dtype)
    tensors = dict(checkpoint.tensors())
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == checkpoint.names
    assert list(tensors) == list(checkpoint.names)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    return tensors


class TestGGUF:
    def quantized(self):
        """The usual tensors, in all the types that a file may mix."""
        kinds = {"token_embd": "Q8_0", "attn_q": "Q4_1", "attn_k": "Q4_0", "attn_v": "F16", "ffn_down": "BF16"}
        tensors = default_tensors()
        return {
            name: (array, next((kind for part, kind in kinds.items() if part in name), "F32"))
            for name, array in tensors.items()
        }

    def test_tensors_equal_those_of_transformers(self, tmp_path):
        path = tmp_path / "model.gguf"
        write(path, tensors=self.quantized())
        reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
        expected = reference.state_dict()
        expected.pop("lm_head.weight")  # tied
        tensors = read_all(path)
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, expected[name]), name

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_values_are_rounded_once(self, tmp_path, dtype):
        path = tmp_path / "model.gguf"
        write(path, tensors=self.quantized())
        exact = read_all(path)
        for name, tensor in read_all(path, dtype).items():
            assert torch.equal(tensor, exact[name].to(dtype)), name

    def test_only_llama_interleaves_the_rows_of_q_and_k(self, tmp_path):
        path = tmp_path / "model.gguf"
        head_dim = SIZES["head_dim"]
        rows = np.arange(SIZES["heads"] * head_dim, dtype=np.float32)
        bias = {"blk.0.attn_q.bias": rows, "blk.1.attn_q.bias": rows}
        write(path, tensors=bias)
        interleaved = read_all(path)["model.layers.0.self_attn.q_proj.bias"]
        assert interleaved[:head_dim].tolist() == [*range(0, head_dim, 2), *range(1, head_dim, 2)]
        assert interleaved[head_dim] == head_dim
        write(path, architecture="qwen2", tensors=bias)
        assert read_all(path)["model.layers.0.self_attn.q_proj.bias"].tolist() == rows.tolist()

    def test_rope_factors_are_no_parameter(self, tmp_path):
        path = tmp_path / "model.gguf"
        write(path, tensors={"rope_freqs.weight": np.ones(8, dtype=np.float32)})
        assert not any("rope" in name for name in read_all(path))

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"blk.0.attn_sinks.weight": np.ones(4, dtype=np.float32)}, "'blk.0.attn_sinks.weight': no such parameter"),
            ({"extra": np.ones(4, dtype=np.float32)}, "'extra': no such parameter"),
            (
                {"blk.0.ffn_up.weight": (np.ones((96, 64), dtype=np.float32), "Q5_0")},
                "'blk.0.ffn_up.weight': type Q5_0 is not supported yet; take a file with types F32",
            ),
            (
                {"blk.1.attn_k.weight": np.ones((30, 64), dtype=np.float32)},
                r"'blk.1.attn_k.weight': shape \[30, 64\] does not fit 2 attention heads",
            ),
        ],
    )
    def test_what_cannot_be_loaded_is_named_before_anything_is_read(self, tmp_path, tensors, message):
        path = tmp_path / "model.gguf"
        write(path, tensors=tensors)
        with pytest.raises(ValueError, match=rf"model\.gguf: tensor {message}"):
            open_checkpoint(path, torch.float32)

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_nan_scale_is_named(self, tmp_path, stored):
        path = tmp_path / "model.gguf"
        write(path, tensors=self.quantized())
        offset = next(t.data_offset for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.attn_q.weight")
        data = bytearray(path.read_bytes())
        data[offset : offset + 2] = np.float16(np.nan).tobytes()
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.gguf: tensor 'blk.1.attn_q.weight': a quantization scale is NaN"):
            list(open_checkpoint(path, torch.float32, stored=stored).tensors())

    def test_asking_for_stored_weights_where_there_are_none_is_refused(self, tmp_path):
        path = tmp_path / "model.gguf"
        write(path, tensors=default_tensors())
        with pytest.raises(ValueError, match=r"native has no effect: .*model\.gguf holds no Q4_0, Q4_1 or Q8_0"):
            open_checkpoint(path, torch.bfloat16, stored=True)
        with pytest.raises(ValueError, match="native is for quantized GGUF files"):
            open_checkpoint(tmp_path, torch.bfloat16, stored=True)

    @pytest.mark.skipif(extension is None, reason="nothing is kept as stored without kernels")
    def test_stored_tensors_have_the_same_values_and_rows(self, tmp_path):
        path = tmp_path / "model.gguf"
        write(path, tensors=self.quantized())
        exact = read_all(path)
        checkpoint = open_checkpoint(path, torch.float32, stored=True)
        tensors = dict(checkpoint.tensors())
        assert list(tensors) == list(exact)
        stored = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, GGUFTensor)}
        kinds = {name.rsplit(".", 2)[-2]: tensor.type for name, tensor in stored.items()}
        assert kinds == {"embed_tokens": "Q8_0", "q_proj": "Q4_1", "k_proj": "Q4_0"}
        for name, tensor in tensors.items():
            assert tuple(tensor.shape) == checkpoint.names[name]
            plain = tensor.dequantize(torch.float32) if isinstance(tensor, GGUFTensor) else tensor
            assert torch.equal(plain, exact[name]), name


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "model.a.weight": torch.randn(6, 4, generator=generator),
        "model.b.weight": torch.randn(3, 5, generator=generator).to(torch.bfloat16),
        "model.c.bias": torch.randn(7, generator=generator).to(torch.float16),
    }


@pytest.fixture
def single(tmp_path, weights):
    directory = tmp_path / "single"
    directory.mkdir()
    safetensors.torch.save_file(weights, directory / "model.safetensors")
    return directory


@pytest.fixture
def sharded(tmp_path, weights):
    directory = tmp_path / "sharded"
    directory.mkdir()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file_name, members in shards.items():
        safetensors.torch.save_file({name: weights[name] for name in members}, directory / file_name)
    weight_map = {name: file_name for file_name, members in shards.items() for name in members}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def rewrite_header(path, change):
    """Apply `change` to the parsed header and put it back, data untouched."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(json.loads(data[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def with_entry(name, **fields):
    return lambda header: header | {name: header[name] | fields}


def move_onto_a(header):
    """Let b's data begin within a's."""
    start, end = header["model.b.weight"]["data_offsets"]
    return header | {"model.b.weight": header["model.b.weight"] | {"data_offsets": [start - 8, end - 8]}}


class TestSafetensors:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("layout", ["single", "sharded"])
    def test_tensors_equal_those_saved(self, request, weights, layout, dtype):
        tensors = read_all(request.getfixturevalue(layout), dtype)
        assert tensors.keys() == weights.keys()
        for name, tensor in weights.items():
            assert torch.equal(tensors[name], tensor.to(dtype)), name

    def test_an_unpadded_header_and_an_empty_tensor_are_read(self, tmp_path):
        header = b'{"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"t":{"dtype":"F32","shape":[2],'
        header += b'"data_offsets":[0,8]}}'
        data = len(header).to_bytes(8, "little") + header + np.float32([1.5, -2]).tobytes()
        assert len(header) % 4
        (tmp_path / "model.safetensors").write_bytes(data)
        tensors = read_all(tmp_path)
        assert tensors["t"].tolist() == [1.5, -2]
        assert tensors["e"].shape == (0, 3)

    def test_writing_to_a_tensor_leaves_the_file_alone(self, single):
        before = (single / "model.safetensors").read_bytes()
        for _, tensor in open_checkpoint(single, torch.float32).tensors():
            tensor.zero_()
        assert (single / "model.safetensors").read_bytes() == before

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda path: path.write_bytes(path.read_bytes()[:-6]), r"tensor 'model.c.bias': data ends.*truncated"),
            (lambda path: path.write_bytes(path.read_bytes()[:40]), "header of .* longer than the file"),
            (lambda path: path.write_bytes(b"short"), "5 bytes long"),
            (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid 1"), "git-LFS pointer"),
            (lambda path: path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:]), "header of 46"),
            (lambda path: path.write_bytes(path.read_bytes() + b"xyz"), "3 surplus bytes after the last tensor"),
            (lambda path: rewrite_header(path, lambda _: b"{not json"), "header is not valid"),
            (lambda path: rewrite_header(path, lambda _: b"[" * 100_000), "header is not valid"),
            (lambda path: rewrite_header(path, lambda _: b"[]"), "header is not a JSON object"),
            (lambda path: rewrite_header(path, lambda _: b'{"a":{},"a":{}}'), "header is not valid: 'a' stands twice"),
            (lambda path: rewrite_header(path, lambda h: h | {"x": 1}), "tensor 'x': header entry lacks"),
            (lambda path: rewrite_header(path, move_onto_a), "tensor 'model.b.weight': data overlaps 'model.a.weight'"),
            (
                lambda path: rewrite_header(path, with_entry("model.a.weight", shape=[6, 5])),
                r"tensor 'model.a.weight': F32 \[6, 5\] needs 120 bytes",
            ),
            (
                lambda path: rewrite_header(path, with_entry("model.a.weight", shape=[-6, -4])),
                "tensor 'model.a.weight': shape .* impossible",
            ),
            (
                lambda path: rewrite_header(path, with_entry("model.a.weight", dtype="F31")),
                "tensor 'model.a.weight': unknown dtype 'F31'",
            ),
            (
                lambda path: rewrite_header(path, with_entry("model.a.weight", dtype="I32")),
                "tensor 'model.a.weight': dtype I32 is not supported yet; supported: F32, F16, BF16",
            ),
            (
                lambda path: rewrite_header(path, lambda h: {k: v for k, v in h.items() if k != "model.b.weight"}),
                "leaves a gap after 'model.a.weight'",
            ),
        ],
    )
    def test_a_damaged_file_is_refused_in_one_line(self, single, damage, message):
        path = single / "model.safetensors"
        damage(path)
        with pytest.raises(ValueError, match=message) as raised:
            open_checkpoint(single, torch.float32)
        assert str(raised.value).startswith(f"{path}: ")
        assert "\n" not in str(raised.value)

    def test_a_missing_shard_is_named(self, sharded):
        (sharded / "model-00002-of-00002.safetensors").unlink()
        message = r"model-00002-of-00002\.safetensors: the shard is missing; .* names it for tensor 'model.c.bias'"
        with pytest.raises(ValueError, match=message):
            open_checkpoint(sharded, torch.float32)

    def test_a_tensor_missing_from_its_shard_is_named(self, sharded, weights):
        safetensors.torch.save_file({"other": weights["model.c.bias"]}, sharded / "model-00002-of-00002.safetensors")
        with pytest.raises(ValueError, match=r"tensor 'model.c.bias' is missing; .* says it is in this shard"):
            open_checkpoint(sharded, torch.float32)

    def test_a_tensor_in_two_shards_is_refused(self, sharded, weights):
        safetensors.torch.save_file(
            {name: weights[name] for name in ("model.b.weight", "model.c.bias")},
            sharded / "model-00002-of-00002.safetensors",
        )
        with pytest.raises(ValueError, match=r"tensor 'model\.b\.weight': stands in another shard as well"):
            open_checkpoint(sharded, torch.float32)

    @pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../b.safetensors"}}'])
    def test_a_bad_index_is_refused(self, sharded, index):
        (sharded / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ValueError, match=r"index\.json: (not JSON|has no weight_map|tensor 'a': '\.\./b)"):
            open_checkpoint(sharded, torch.float32)

    def test_a_directory_without_safetensors_is_refused(self, single):
        shutil.move(single / "model.safetensors", single / "other.safetensors")
        with pytest.raises(ValueError, match=r"neither model\.safetensors nor .* is there$"):
            open_checkpoint(single, torch.float32)
        (single / "pytorch_model.bin").write_bytes(b"\x80\x04.")
        with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle.*convert it to safetensors"):
            open_checkpoint(single, torch.float32)
