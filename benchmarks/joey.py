"""JoeyNMT as a baseline: write its configuration, run it, and read its log."""

import re
import subprocess
import sys

from harness import BASELINE_PYTHON

JOEY_STEPS = 60


def joey_config(hp, vocab, flags, folder):
    """Make the configuration of the same model, with the same vocabulary and batch sizes.

    Args:
      vocab: SubwordVocab of both languages.
      flags: dict, which names the files of the corpus.
      folder: for JoeyNMT's vocabulary, which this function writes, and its checkpoints.
    """
    from text.ids import SPECIALS

    vocab_path = folder / "joey.vocab"
    tokens = vocab.tokens()[len(SPECIALS) :]
    vocab_path.write_text("\n".join(tokens) + "\n", encoding="utf-8")

    def side(lang):
        return dict(
            lang=lang,
            level="bpe",
            max_length=hp.maxlen,
            voc_file=str(vocab_path),
            tokenizer_type="sentencepiece",
            tokenizer_cfg=dict(model_file=str(vocab.path)),
        )

    stack = dict(
        type="transformer",
        num_layers=hp.num_blocks,
        num_heads=hp.num_heads,
        hidden_size=hp.hidden_units,
        ff_size=hp.ffn_units,
        dropout=hp.dropout_rate,
        layer_norm="post",
        embeddings=dict(embedding_dim=hp.hidden_units, scale=True, dropout=hp.dropout_rate),
    )
    names = {f"{name}_token": SPECIALS[i] for name, i in dict(pad=0, unk=1, bos=2, eos=3).items()}
    return dict(
        name="baseline",
        joeynmt_version="2.3.0",
        model_dir=str(folder / "joey"),
        use_cuda=False,
        data=dict(
            train=flags["source_train"].removesuffix(f".{hp.source_lang}"),
            dev=flags["source_dev"].removesuffix(f".{hp.source_lang}"),
            dataset_type="plain",
            src=side(hp.source_lang),
            trg=side(hp.target_lang),
            special_symbols=names | dict(unk_id=0, pad_id=1, bos_id=2, eos_id=3),
        ),
        training=dict(
            optimizer="adam",
            adam_betas=[0.9, hp.beta_2],
            scheduling="warmupinversesquareroot",
            learning_rate=hp.lr,
            learning_rate_warmup=hp.warmup_steps,
            batch_size=hp.batch_tokens,
            batch_type="token",
            normalization="tokens",
            label_smoothing=0.1,
            epochs=1,
            updates=JOEY_STEPS,
            logging_freq=JOEY_STEPS // 3,
            validation_freq=1000 * (JOEY_STEPS // 3),
            overwrite=True,
        ),
        testing=dict(beam_size=5, batch_size=hp.batch_size, batch_type="sentence"),
        model=dict(
            initializer="xavier_uniform",
            tied_embeddings=True,
            tied_softmax=True,
            encoder=stack,
            decoder=stack,
        ),
    )


def run_joey(config, pattern, mode, *options) -> list[float]:
    """Run JoeyNMT, and return the numbers in its log that match the pattern.

    Args:
      config: path of its configuration.
      mode: "train" or "test".
    """
    command = [BASELINE_PYTHON, "-m", "joeynmt", mode, config, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    numbers = re.findall(pattern, done.stdout + done.stderr)
    if done.returncode or not numbers:
        sys.exit(f"JoeyNMT failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [*map(float, numbers)]
