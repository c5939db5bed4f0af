#!/usr/bin/env python3
"""Writes the seeds of test/fuzz's targets: small valid and nearly valid files as OUT/TARGET/NAME, and dictionaries as OUT/TARGET.dict.

    dev/fuzz_corpus.py OUT

The files are the same every time. Only Python is needed. docs/ and the headers describe the formats (token_shard.h, safetensors.h, ...).
"""
import json
import math
import pathlib
import struct
import sys

OUT = pathlib.Path()


def seed(target, name, content):
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def words(target, texts):
    """Writes a dictionary for libFuzzer, which inserts each of these texts as a whole."""
    lines = ["".join(f"\\x{byte:02x}" for byte in (text if isinstance(text, bytes) else text.encode())) for text in texts]
    (OUT / f"{target}.dict").write_text("".join(f'"{line}"\n' for line in lines))


def parts(*texts):
    """Several files as one input (parts_of in fuzz.h)."""
    return b"\n====\n".join(text if isinstance(text, bytes) else text.encode() for text in texts)


def header(*values):
    """llm.c's header: 256 int32."""
    return struct.pack("<256I", *values, *([0] * (256 - len(values))))


def token_shards():
    def shard(tokens, source_hash=0, magic=20240520, version=1, count=None):
        counted = len(tokens) if count is None else count
        return header(magic, version, counted, 0, source_hash) + struct.pack(f"<{len(tokens)}{'I' if version == 7 else 'H'}", *tokens)

    seed("token_shard", "empty", shard([]))
    seed("token_shard", "small", shard([5962, 22307, 25, 198, 8421, 356, 5120, 597]))
    seed("token_shard", "windows", shard([token % 50257 for token in range(0, 60000, 300)], source_hash=7))
    seed("token_shard", "outside_the_vocabulary", shard([1, 2, 3, 50257, 65535, 4, 5]))
    seed("token_shard", "too_many", shard([1, 2, 3], count=2**31 + 3))
    seed("token_shard", "version", shard([1], version=2))
    seed("token_shard", "cut_short", shard([1, 2, 3])[:-1])
    seed("token_shard", "wide", shard([1, 2, 50256, 3, 4], magic=20240801, version=7))
    seed("token_shard", "wide_outside_the_vocabulary", shard([1, 2, 2**31, 3, 4], magic=20240801, version=7))
    seed("token_shard", "no_shard", b"To be, or not to be")


def safetensors_bytes(tensors, metadata=None):
    """tensors: {name: (dtype, shape, data)}"""
    root, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, content) in tensors.items():
        root[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(root, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors():
    one = struct.pack("<f", 1.0)
    dtypes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
              "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
    seed("safetensors", "one", safetensors_bytes({"x": ("F32", [1], one)}))
    seed("safetensors", "none", safetensors_bytes({}, {"format": "pt"}))
    seed("safetensors", "scalar", safetensors_bytes({"x": ("F64", [], b"\x00" * 8)}))
    seed("safetensors", "dtypes", safetensors_bytes({f"t.{name}": (name, [2, 1], bytes(range(2 * size))) for name, size in dtypes.items()}))
    seed("safetensors", "empty_tensor", safetensors_bytes({"e": ("F16", [3, 0], b""), "x": ("F32", [1], one)}))
    seed("safetensors", "overflow", safetensors_bytes({"x": ("F32", [2**32, 2**32], one)}))
    seed("safetensors", "unicode", safetensors_bytes({"\u00e9\u20ac": ("F32", [1], one)}, {"k": "\x1b[31m"}))
    words("safetensors", ['"dtype":"', '"shape":[', '"data_offsets":[', '"__metadata__":{', "18446744073709551615", "[[[[", "{}", *dtypes])


def characters_by_byte():
    """(character, byte): the character that GPT-2's files write for each byte, in the order of these files."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [(chr(byte), byte) for byte in printable] + [(chr(0x100 + index), byte) for index, byte in enumerate(others)]


def tokenizer_files():
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("e", "r"), ("o", "the"), ("othe", "r")]
    encoder = {character: index for index, (character, _) in enumerate(characters_by_byte())}
    for left, right in merges:
        encoder[left + right] = len(encoder)
    encoder["<|endoftext|>"] = len(encoder)
    lines = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    for name, ascii_only in (("escaped", True), ("plain", False)):
        seed("tokenizer_files", name, parts(json.dumps(encoder, ensure_ascii=ascii_only, separators=(",", ":")), lines))
    for name, change in (("no_end", {}), ("negative", {"th": -1}), ("fraction", {"th": 1.5}), ("huge", {"th": 2**32 + 256}), ("text", {"th": "1"})):
        broken = {key: value for key, value in {**encoder, **change}.items() if name != "no_end" or key != "<|endoftext|>"}
        seed("tokenizer_files", name, parts(json.dumps(broken), lines))
    seed("tokenizer_files", "merge_order", parts(json.dumps(encoder), "th e\nt h\n"))
    seed("tokenizer_files", "list", parts("[1,2]", "a b\n"))
    pre = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False}]}
    regex = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    qwen = {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    special = [{"id": encoder["<|endoftext|>"], "content": "<|endoftext|>", "special": True}]
    described = {"model": {"type": "BPE", "vocab": encoder, "merges": merges}, "added_tokens": special}
    for name, splitting in (("digits", pre), ("space", {"type": "ByteLevel"}), ("pattern", {"type": "Split"}), ("none", None), ("qwen", qwen)):
        seed("tokenizer_files", name, parts("", "12 345", json.dumps({**described, "pre_tokenizer": splitting})))
    for name, change in (("nfc", {"normalizer": {"type": "NFC"}}), ("whole_words", {"model": {**described["model"], "ignore_merges": True}})):
        seed("tokenizer_files", name, parts("", "e\u0301 the", json.dumps({**described, "pre_tokenizer": qwen, **change})))
    whole = json.dumps({**described, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}})
    flags = {"content": "<x>", "lstrip": True, "rstrip": True, "single_word": True, "normalized": True, "special": False}
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<e>", "add_bos_token": True, "extra_special_tokens": ["  "]}
    tokens = {"added_tokens_decoder": {"264": flags}, "split_special_tokens": True}
    ids = json.dumps({"eos_token_id": [263, 1], "pad_token_id": 2})
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "b"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"b": {"ids": [7]}}}
    files = ("the <x> <e>   x", whole, json.dumps(config), json.dumps({"pad_token": flags}), json.dumps({"<y>": 263}), ids)
    seed("tokenizer_files", "folder", parts("", *files))
    seed("tokenizer_files", "folder_slow", parts(json.dumps(encoder), lines, "", *files[2:]))
    seed("tokenizer_files", "folder_decoder", parts("", files[0], whole, json.dumps({**config, **tokens}), "", "", ids))
    seed("tokenizer_files", "template", parts("", "a b", json.dumps({**json.loads(whole), "post_processor": template})))
    words("tokenizer_files", ['"add_prefix_space":', '"ignore_merges":', '"type":', '"use_regex":', '"<|endoftext|>":', '"th":', "#version",
                              "\n====\n", "\\u0120", "-1", "4294967552", "1e300", "\u0120", "null", '"lstrip":true', '"rstrip":true', "<x>", "<e>",
                              '"single_word":true', '"normalized":false', '"added_tokens_decoder":', '"eos_token":', '"extra_special_tokens":',
                              '"post_processor":', '"tokenizer_class":"PreTrainedTokenizerFast"'])  # fmt: skip


def tokenizer():
    texts = ["", "Hello world", "  \n\t  x", "I'll they've 123 4567", "na\u00efve \u65e5\u672c\u8a9e \U0001f600", "<|endoftext|>", "\u00a0\u2003\u3000",
             "a" * 300, " " * 300, "\u0301" * 50, "x\ny z\n\n  w"]  # fmt: skip
    texts += ["'S '\u017f 12345 .x\n (y)\n\n  z \n ", "e\u0301 \uac00\u11a8 \r\n\r\n x"]
    for target in ("tokenizer", "word_splitter", "tokenizer_training"):
        for index, text in enumerate(texts):
            seed(target, f"text_{index:02}", text)
    seed("tokenizer", "bytes", bytes(range(256)))
    seed("tokenizer", "broken_utf8", b"\xc3 \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80 x")
    words("tokenizer", ["'s", "'ll", "\u00a0", "\u2028", "\u0661", "\U0001d7d8", "<|endoftext|>", b"\xed\xa0\x80", b"\xff"])


def model_tensors(V, context, L, C, rows):
    """The tensors of a GPT-2 with Hugging Face's names and shapes; the weights take few different values. rows: those of wte."""
    tensors = {}

    def add(name, *shape):
        count = 1
        for n in shape:
            count *= n
        tensors[name] = ("F32", list(shape), struct.pack(f"<{count}f", *(((len(tensors) + i) % 7 - 3) / 8 for i in range(count))))

    add("wte.weight", rows, C)
    add("wpe.weight", context, C)
    for layer in range(L):
        h = f"h.{layer}."
        for name, into, out in (("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C), ("mlp.c_fc", C, 4 * C), ("mlp.c_proj", 4 * C, C)):
            add(h + name + ".weight", into, out)
            add(h + name + ".bias", out)
        for name in ("ln_1", "ln_2"):
            add(h + name + ".weight", C)
            add(h + name + ".bias", C)
    add("ln_f.weight", C)
    add("ln_f.bias", C)
    return tensors


def other_families():
    """(name, config.json, tensors) of a Llama, a Qwen3 and a nanochat of one layer, which the reader accepts."""
    V, C, H, NH, NKV, HS = 5, 8, 6, 2, 1, 4

    def tensors(shapes):
        return {f"model.{name}.weight": ("F32", list(shape), struct.pack("<f", 0.5) * math.prod(shape)) for name, shape in shapes.items()}

    attention = {"q_proj": (NH * HS, C), "k_proj": (NKV * HS, C), "v_proj": (NKV * HS, C), "o_proj": (C, NH * HS)}
    shared = {"embed_tokens": (V, C)} | {f"layers.0.self_attn.{name}": shape for name, shape in attention.items()}
    llama = shared | {"layers.0.mlp.gate_proj": (H, C), "layers.0.mlp.up_proj": (H, C), "layers.0.mlp.down_proj": (C, H),
                      "layers.0.input_layernorm": (C,), "layers.0.post_attention_layernorm": (C,), "norm": (C,)}  # fmt: skip
    qwen3 = llama | {"layers.0.self_attn.q_norm": (HS,), "layers.0.self_attn.k_norm": (HS,)}
    nanochat = shared | {"layers.0.mlp.fc1": (H, C), "layers.0.mlp.fc2": (C, H)}
    config = {"vocab_size": V, "max_position_embeddings": 3, "num_hidden_layers": 1, "num_attention_heads": NH, "num_key_value_heads": NKV,
              "hidden_size": C, "intermediate_size": H, "head_dim": HS, "rms_norm_eps": 1e-6, "attention_bias": False,
              "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": True}  # fmt: skip
    yield "llama", config | {"model_type": "llama", "hidden_act": "silu", "mlp_bias": False}, tensors(llama)
    yield "qwen3", config | {"model_type": "qwen3", "use_sliding_window": False, "layer_types": ["full_attention"]}, tensors(qwen3)
    head = {"lm_head.weight": tensors(shared)["model.embed_tokens.weight"]}
    yield ("nanochat", config | {"model_type": "nanochat", "hidden_act": "relu2", "final_logit_softcapping": 15.0, "tie_word_embeddings": False},
           tensors(nanochat) | head)  # fmt: skip


def hugging_face():
    config = {"model_type": "gpt2", "vocab_size": 5, "n_positions": 3, "n_layer": 1, "n_head": 1, "n_embd": 2, "activation_function": "gelu_new",
              "layer_norm_epsilon": 1e-5}  # fmt: skip
    bare = model_tensors(5, 3, 1, 2, 5)
    prefixed = {f"transformer.{name}": value for name, value in bare.items()}
    byte_tokenizer = json.dumps({"model": {"type": "BPE", "vocab": {character: byte for character, byte in characters_by_byte()}, "merges": []}})
    text = json.dumps(config)
    seed("hugging_face", "bare", parts(text, safetensors_bytes(bare)))
    seed("hugging_face", "prefixed", parts(text, safetensors_bytes(prefixed), "", "", byte_tokenizer))
    seed("hugging_face", "head", parts(text, safetensors_bytes({**prefixed, "lm_head.weight": prefixed["transformer.wte.weight"]})))
    first = dict(list(bare.items())[:5])
    second = dict(list(bare.items())[5:])
    # Both parts name the second part's file: only one of model.safetensors and the index is read.
    weight_map = {**dict.fromkeys(first, "model-2.safetensors"), **dict.fromkeys(second, "model-2.safetensors")}
    seed("hugging_face", "sharded", parts(text, "", json.dumps({"metadata": {}, "weight_map": weight_map}), safetensors_bytes(bare)))
    seed("hugging_face", "missing", parts(text, safetensors_bytes(first)))
    seed("hugging_face", "other_model", parts(json.dumps({**config, "n_inner": 9, "model_type": "llama"}), safetensors_bytes(bare)))
    for name, family, tensors in other_families():
        seed("hugging_face", name, parts(json.dumps(family), safetensors_bytes(tensors)))
    seed("hugging_face", "deep", parts('{"model_type":' + "[" * 20000 + "]" * 20000 + "}", b""))
    words("hugging_face", ['"n_embd":', '"n_head":', '"n_layer":', '"n_positions":', '"vocab_size":', '"weight_map":', '"tie_word_embeddings":',
                           '"n_inner":null', "transformer.", "h.0.attn.bias", "lm_head.weight", "\n====\n", "BF16", "F16", "F64",
                           '"model_type":"qwen3"', '"model_type":"nanochat"', '"num_key_value_heads":', '"head_dim":', '"intermediate_size":',
                           '"rope_theta":', '"rope_scaling":', '"rms_norm_eps":', '"use_sliding_window":', '"layer_types":',
                           '"final_logit_softcapping":', "model.norm.weight", "self_attn.q_norm"])  # fmt: skip


def llmc_models():
    def model(V, context, L, NH, C, Vp, version=3):
        elements = Vp * C + context * C + L * (12 * C * C + 13 * C) + 2 * C
        values = [((i * 37) % 101 - 50) / 64 for i in range(elements)]
        body = struct.pack(f"<{elements}f", *values)
        if version == 5:
            body = b"".join(body[i + 2 : i + 4] for i in range(0, len(body), 4))
        return header(20240326, version, context, V, L, NH, C, Vp) + body

    seed("llmc_model", "fp32", model(5, 3, 1, 1, 2, 8))
    seed("llmc_model", "bf16", model(5, 3, 2, 2, 4, 128, version=5))
    seed("llmc_model", "odd", model(7, 1, 1, 3, 3, 7))
    seed("llmc_model", "cut_short", model(5, 3, 1, 1, 2, 8)[:-3])
    seed("llmc_model", "huge", header(20240326, 3, 1 << 20, 65536, 64, 4096, 1 << 17, 65536))
    seed("llmc_model", "negative", header(20240326, 3, 2**32 - 1, 5, 1, 1, 2, 8))


def hellaswag():
    def line(**entries):
        return json.dumps(entries) + "\n"

    example = {"ind": 24, "ctx": "A man sits", "label": 3, "endings": ["on a roof.", "in a chair.", "up.", "down."]}
    seed("hellaswag", "jsonl", line(**example) + line(**{**example, "label": "0"}))
    seed("hellaswag", "parts", line(ind=1, ctx_a="A man", ctx_b="sits", label=1, endings=["a", "b"]))
    seed("hellaswag", "no_label", line(ctx="x", endings=["a", "b"], label=""))
    seed("hellaswag", "deep", '{"ctx": "x", "endings": ["a", "b"], "label": ' + "[" * 20000 + "]" * 20000 + "}\n")

    def eval_file(*examples):
        stream, longest = b"", 0
        for label, context, *endings in examples:
            body = [label, len(endings), len(context), *context]
            for ending in endings:
                body += [len(ending), *ending]
            size = 2 * (3 + len(body))
            longest = max(longest, size)
            stream += struct.pack(f"<{3 + len(body)}H", 65535, size, 7, *body)
        return header(20240522, 1, len(examples), longest) + stream

    seed("hellaswag", "eval_file", eval_file((1, [1, 2, 3], [4], [5, 6], [7], [8, 9, 10])))
    seed("hellaswag", "two", eval_file((0, [1], [4], [5, 6]), (1, [1] * 12, [299, 300], [5])))
    words("hellaswag", ['"ctx":', '"ctx_a":', '"ctx_b":', '"endings":[', '"label":', '"ind":', b"\xff\xff", b"\x02\x00"])


def training_state():
    state = {"format": 1, "step": 3, "optimizer_step": 3, "skipped": 0, "batch_size": 4, "evaluated": True, "val_loss": 2.5, "options": {"lr": "1e-3"},
             "identity": {"layers": 4}, "outlier_detector": {"loss": [2.5, 2], "grad_norm": []}, "files": {"model.safetensors": {"bytes": 1, "xxh3_64": "0" * 16}}}  # fmt: skip
    seed("training_state", "state", parts(json.dumps(state), "x"))
    seed("training_state", "nothing", parts(json.dumps({**state, "val_loss": None, "files": {}}), ""))
    for name, change in (("outside", {"files": {"../x": {"bytes": 1, "xxh3_64": ""}}}), ("fraction", {"step": 1e300}), ("negative", {"step": -1}),
                         ("text", {"batch_size": "4"}), ("deep", {"options": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]})):  # fmt: skip
        seed("training_state", name, parts(json.dumps({**state, **change}), "x"))
    words("training_state", [*(f'"{key}":' for key in state), "1e300", "-1", "null", "\n====\n"])


def gemm_choices():
    fast = {"algorithm": "0123456789abcdef" * 8, "description": "algorithm 66", "ms": 0.1, "first_ms": 0.3, "tflops": 612.5}
    apart = {"description": "apart", "ms": 0.0, "first_ms": 0.0, "tflops": 0.0}
    file = {"format": "flatgpt matmul algorithms 2", "gpu": "NVIDIA H100", "multiprocessors": 132, "cublaslt": 130100, "checksum": "0" * 16,
            "products": {"TN m = 768, n = 512, k = 768": fast, "NT": apart}}  # fmt: skip
    seed("gemm_choices", "two", json.dumps(file))
    seed("gemm_choices", "none", json.dumps({**file, "products": {}}))
    seed("gemm_choices", "short", json.dumps({**file, "products": {"TN": {**fast, "algorithm": "0123"}}}))
    words("gemm_choices", [*(f'"{key}":' for key in (*file, *fast)), "1e300", "-1", "null"])


def metrics():
    lines = [{"kind": "run", "options": {}}, {"kind": "train", "step": 1, "loss": 2.5}, {"kind": "val", "step": 1, "loss": None},
             {"kind": "sample", "step": 1, "text": "\u00e9\\n"}, {"kind": "train", "step": 2}, {"kind": "run", "resumed_from": 2}]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    seed("metrics", "run", b"\x03" + text.encode())
    seed("metrics", "torn", b"\x02" + text.encode()[:-9])
    words("metrics", ['"kind":"train"', '"kind":"run"', '"step":', '"resumed_from":', "1e300", "\n"])


def utf8_stream():
    for pieces in range(1, 8):
        seed("utf8_stream", f"pieces_of_{pieces}", bytes([pieces - 1]) + "na\u00efve \u65e5\u672c\U0001f600 \u0301".encode())
    seed("utf8_stream", "broken", b"\x00\xc3 \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80 x\xf0")


def document_stream():
    seed("document_stream", "two", '{"text": "one", "place": "a:1"}\n\n{"text": "two", "id": [1, {"x": null}]}\n{"end": true}\n')
    seed("document_stream", "no_end", '{"text": "one\\u0000"}')
    seed("document_stream", "deep", '{"text": "x", "y": ' + "[" * 20000 + "]" * 20000 + "}\n")
    seed("document_stream", "no_text", '{"content": "one"}\n')
    words("document_stream", ['{"text": "', '"place": "', '{"end": true}', "\n", "\\ud800"])


def restartable_shards():
    shard = header(20240520, 1, 4) + struct.pack("<4H", 1, 2, 3, 4)
    entry = {"file": "train_000000.bin", "tokens": 4, "document": "a:1", "document_tokens": 2}
    manifest = {"tokenizer": "byte", "shard_tokens": 4, "val_tokens": 0, "complete": False, "shards": [entry]}
    seed("restartable_shards", "one", parts(json.dumps(manifest), shard))
    seed("restartable_shards", "none", parts(json.dumps({**manifest, "shards": []}), ""))
    seed("restartable_shards", "complete", parts(json.dumps({**manifest, "complete": True}), shard))
    seed("restartable_shards", "outside", parts(json.dumps({**manifest, "shards": [{**entry, "file": "../../x", "tokens": 1e300}]}), shard))
    words("restartable_shards", [*(f'"{key}":' for key in (*manifest, *entry)), "1e300", "-1", "18446744073709551615", "\n====\n"])


def main():
    global OUT
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: dev/fuzz_corpus.py OUT")
    OUT = pathlib.Path(sys.argv[1])
    OUT.mkdir(parents=True, exist_ok=True)
    for write in (token_shards, safetensors, tokenizer_files, tokenizer, hugging_face, llmc_models, hellaswag, training_state, gemm_choices, metrics,
                  utf8_stream, document_stream, restartable_shards):  # fmt: skip
        write()


if __name__ == "__main__":
    main()
