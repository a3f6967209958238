"""Train the small models whose attention and curves the pictures show, on the built-in corpus.

python docs/figures/train_models.py              # all that logdir/figures lacks
python docs/figures/train_models.py learned t5   # these

Each model takes a few minutes on an idle core. `few_pairs` and `many_pairs` differ in the number of
pairs, and in the size of batches (1,024 and 2,048 tokens).
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from harness import SMALL_PAPER

FOLDER = ROOT / "logdir" / "figures"
FEW, MANY = 1000, 20_000  # training pairs
SIZE = dict(vocab_size=500, hidden_units=64)
BLOCKS = dict(ffn_units=256, num_blocks=2, num_heads=4)
TINY = SMALL_PAPER | dict(dropout_rate=0.1, num_epochs=5) | SIZE | BLOCKS
UNREGULARIZED = dict(dropout_rate=0.0, label_smoothing=0.0, warmup_steps=100)

# The flags of each model by its name.
MODELS = dict(
    few_pairs=TINY | UNREGULARIZED | dict(num_epochs=60, batch_tokens=1024),
    many_pairs=TINY | UNREGULARIZED | dict(num_epochs=6, dev_steps=43),
    recurrent=dict(
        model="rnn_attention",
        attention_score="additive",
        tokenizer="words",
        min_cnt=2,
        maxlen=12,
        hidden_units=128,
        batch_tokens=1024,
        lr=0.003,
        warmup_steps=100,
        num_epochs=8,
    ),
    learned=TINY | dict(positions="learned", maxlen=40),
    t5=TINY | dict(positions="t5"),
)


def trained_logdir(name) -> str:
    """The logdir of a model. Ends the program if the model is not trained."""
    logdir = FOLDER / name
    if not (logdir / "run.json").exists():
        sys.exit(f"{logdir}: no such model. Run: python docs/figures/train_models.py {name}")
    return str(logdir)


def run(script, **flags):
    """Run a script of the project."""
    command = [sys.executable, ROOT / script]
    for name, value in flags.items():
        command += [f"--no-{name}"] if value is False else [f"--{name}", str(value)]
    subprocess.run(command, check=True)


def make_corpus(pairs) -> dict:
    """Write the built-in corpus with this number of training pairs: the flags that name it."""
    folder = FOLDER / f"corpus_{pairs}"
    if not folder.exists():
        run("corpora/sample.py", output=folder, train=pairs, dev=200, test=1000)
    files = dict(
        train="train.tags.de-en.{}",
        dev="IWSLT16.TED.dev2010.de-en.{}.xml",
        test="IWSLT16.TED.tst2014.de-en.{}.xml",
    )
    languages = dict(source="de", target="en")
    return {
        f"{side}_{part}": folder / file.format(language)
        for part, file in files.items()
        for side, language in languages.items()
    }


def train(name):
    """Train a model, with the vocabulary of 20,000 pairs."""
    flags = MODELS[name]
    words = {key: flags[key] for key in ("tokenizer", "min_cnt") if key in flags}
    vocabulary = FOLDER / ("words" if words else "subwords")
    if not vocabulary.exists():
        words = words or {key: flags[key] for key in ("recipe", "vocab_size")}
        run("prepro.py", preprocessed=vocabulary, **words, **make_corpus(MANY))
    text = make_corpus(FEW if name == "few_pairs" else MANY) | dict(preprocessed=vocabulary)
    run("train.py", logdir=FOLDER / name, keep_checkpoints=1, save_steps=0, **text, **flags)


def main():
    """Train the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME", default=[])
    names = parser.parse_args().names
    for name in names or MODELS:
        if names or not (FOLDER / name / "run.json").exists():
            train(name)


if __name__ == "__main__":
    main()
