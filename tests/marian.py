"""Models of Marian in the format of Hugging Face transformers, without transformers."""

import io
import json

import numpy as np
import sentencepiece
from safetensors.numpy import load_file, save_file

EPSILON = 1e-5  # of Marian's normalization; ours is 1e-8
HEADS, UNITS, INNER = 2, 16, 24
LANGUAGES = (">>eng<<", ">>de_x<<")


class Marian:
    """The folder of a model, read and computed as the documentation of transformers has it."""

    def __init__(self, path):
        self.config = json.loads((path / "config.json").read_text())
        self.tensors = load_file(path / "model.safetensors")
        self.path = path

    def ids(self, model, vocab, line):
        """Split a line as transformers does: names of languages, then subwords."""
        processor = sentencepiece.SentencePieceProcessor(model_file=str(self.path / model))
        ids = json.loads((self.path / vocab).read_text("utf-8"))
        language = [name for name in LANGUAGES if line.startswith(name)]
        pieces = language + processor.encode(line.removeprefix("".join(language)), out_type=str)
        return [ids.get(piece, ids["<unk>"]) for piece in [*pieces, "</s>"]]

    def linear(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def normalize(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def attention(self, name, queries, keys, heads, causal=False):
        Q, K, V = (
            self.linear(f"{name}.{letter}_proj", x).reshape(len(x), heads, -1).swapaxes(0, 1)
            for letter, x in zip("qkv", (queries, keys, keys), strict=True)
        )
        scores = Q @ K.swapaxes(1, 2) * Q.shape[-1] ** -0.5
        if causal:
            scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        outputs = (weights @ V).swapaxes(0, 1).reshape(len(queries), -1)
        return self.normalize(
            f"{name}_layer_norm", queries + self.linear(f"{name}.out_proj", outputs)
        )

    def feedforward(self, name, x):
        inner = self.linear(f"{name}.fc1", x)
        is_swish = self.config["activation_function"] == "swish"
        inner = inner / (1 + np.exp(-inner)) if is_swish else np.maximum(inner, 0)
        return self.normalize(f"{name}.final_layer_norm", x + self.linear(f"{name}.fc2", inner))

    def table(self, side):
        name = f"model.{side}.embed_tokens.weight"
        return self.tensors.get(name, self.tensors.get("model.shared.weight"))

    def embed(self, ids, side):
        units = self.config["d_model"]
        angles = np.arange(len(ids))[:, None] / 10000 ** (2 * np.arange(units // 2) / units)
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return self.table(side)[ids] * units**0.5 + positions

    def logits(self, source, target):
        memory, heads = self.embed(source, "encoder"), self.config["encoder_attention_heads"]
        for i in range(self.config["encoder_layers"]):
            name = f"model.encoder.layers.{i}"
            memory = self.attention(f"{name}.self_attn", memory, memory, heads)
            memory = self.feedforward(name, memory)
        x = self.embed([self.config["decoder_start_token_id"], *target[:-1]], "decoder")
        for i in range(self.config["decoder_layers"]):
            name = f"model.decoder.layers.{i}"
            x = self.attention(f"{name}.self_attn", x, x, heads, causal=True)
            x = self.attention(f"{name}.encoder_attn", x, memory, heads)
            x = self.feedforward(name, x)
        return x @ self.table("decoder").T + self.tensors["final_logits_bias"]


def make_marian(folder, lines, joint=True, activation="swish"):
    """Write the folder of a model with random parameters, as those of OPUS-MT are written.

    `lines` are two lists, text of both languages, which may have one `joint` vocabulary.
    """
    folder.mkdir(parents=True)
    models = [make_unigrams(side) for side in lines]
    subwords = [
        [model.id_to_piece(i) for i in range(3, model.get_piece_size())] for model in models
    ]
    if joint:
        subwords = [dict.fromkeys(subwords[0] + subwords[1])]
    # Those of the text that was most common come first, and the rarest ones are missing.
    vocabs = [["</s>", "<unk>", *[*side][:-3], *LANGUAGES, "<pad>"] for side in subwords]
    vocabs[-1][9] += "renamed"  # one piece more is missing, with two vocabularies in the target
    size = max(map(len, vocabs))
    vocabs = [
        [*side[:-1], *[f"unused{i}" for i in range(size - len(side))], "<pad>"] for side in vocabs
    ]
    for name, vocab in zip(("vocab", "target_vocab"), vocabs, strict=False):
        write_json(folder / f"{name}.json", {token: i for i, token in enumerate(vocab)})
    for name, model in zip(("source", "target"), models, strict=True):
        (folder / f"{name}.spm").write_bytes(model.serialized_model_proto())
    languages = dict(source_lang="de", target_lang="en", separate_vocabs=not joint)
    write_json(folder / "tokenizer_config.json", languages)
    sizes = {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
    config = sizes | dict(
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        model_type="marian",
        d_model=UNITS,
        encoder_layers=2,
        decoder_layers=1,
        vocab_size=size,
        activation_function=activation,
        share_encoder_decoder_embeddings=joint,
        scale_embedding=True,
        max_position_embeddings=64,
        dropout=0.15,
        pad_token_id=size - 1,
        eos_token_id=0,
        decoder_start_token_id=size - 1,
    )
    write_json(folder / "config.json", config)
    save_file(make_tensors(config, joint), folder / "model.safetensors")


def make_tensors(config, joint) -> dict:
    """Draw the parameters of a model."""
    rng = np.random.default_rng(0)
    size = config["vocab_size"]
    shapes = {"final_logits_bias": (1, size)}
    tables = ["shared"] if joint else [f"{side}.embed_tokens" for side in ("encoder", "decoder")]
    shapes |= {f"model.{table}.weight": (size, UNITS) for table in tables}
    for side, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        layers = dict(fc1=(INNER, UNITS), fc2=(UNITS, INNER), final_layer_norm=(UNITS,))
        for name in attentions:
            layers |= {f"{name}.{part}_proj": (UNITS, UNITS) for part in ("q", "k", "v", "out")}
            layers[f"{name}_layer_norm"] = (UNITS,)
        for i in range(config[f"{side}_layers"]):
            for name, shape in layers.items():
                shapes[f"model.{side}.layers.{i}.{name}.weight"] = shape
                shapes[f"model.{side}.layers.{i}.{name}.bias"] = shape[:1]
    tensors = {n: rng.normal(0, 0.4, shape).astype("float32") for n, shape in shapes.items()}
    for table in tables:
        tensors[f"model.{table}.weight"][-1] = 0  # <pad>, from which the decoder starts
    return tensors


def make_unigrams(lines):
    """Train a sentencepiece model as those of OPUS-MT are: unigrams, with NFKC."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_json(path, content):
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
