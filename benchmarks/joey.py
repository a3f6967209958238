"""JoeyNMT as a reference: what it must read, and what its log says."""

import re
import subprocess
import sys

from beside import rivals_python

JOEY_STEPS = 60


def joey_config(hp, flags, folder):
    """What JoeyNMT must read to train the same model, on the same pieces and sizes of batches."""
    from text import SPECIALS, Pieces

    pieces = Pieces(hp.pieces_path)
    words = folder / "joey.vocab"
    listed = [pieces.token(i) for i in range(len(SPECIALS), len(pieces))]
    words.write_text("\n".join(listed) + "\n", encoding="utf-8")

    def side(lang):
        return dict(
            lang=lang,
            level="bpe",
            max_length=hp.maxlen,
            voc_file=str(words),
            tokenizer_type="sentencepiece",
            tokenizer_cfg=dict(model_file=str(hp.pieces_path)),
        )

    half = dict(
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
        name="beside",
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
            learning_rate=hp.peak_lr,
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
            encoder=half,
            decoder=half,
        ),
    )


def joey_says(config, pattern, mode, *options):
    """Run JoeyNMT; the numbers that its log has where the pattern fits."""
    command = [rivals_python(), "-m", "joeynmt", mode, config, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    told = re.findall(pattern, done.stdout + done.stderr)
    if done.returncode or not told:
        sys.exit(f"JoeyNMT failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [*map(float, told)]
