"""Train the small models whose attention and curves the pictures show, on the built-in corpus.

python docs/figures/train_models.py              # all that logdir/figures lacks
python docs/figures/train_models.py additive t5  # these

Each model takes about two minutes on one core. `trained_logdir` finds them.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "logdir" / "figures"
sys.path.insert(0, str(ROOT))

from choices import ATTENTION_SCORES

SMALL_PAIRS = 1000  # of the training that overfits
SIZE = dict(vocab_size=500, hidden_units=64)
BLOCKS = dict(ffn_units=256, num_blocks=2, num_heads=4)
TINY = dict(recipe="tiny", dropout_rate=0.1, num_epochs=8) | SIZE | BLOCKS
RECURRENT = dict(recipe="rnn_attention", lr=0.003, num_epochs=6) | SIZE
UNREGULARIZED = dict(dropout_rate=0.0, label_smoothing=0.0, warmup_steps=100)

# The flags of each model by its name. The six recurrent models differ in the attention function.
MODELS = {name: RECURRENT | dict(attention_score=name) for name in ATTENTION_SCORES} | dict(
    t5=TINY | dict(positions="t5"),
    learned=TINY | dict(positions="learned", maxlen=40),
    curve=TINY | dict(num_epochs=16, dev_steps=50),
    large_rate=TINY | dict(lr=0.01),
    many_pairs=TINY | UNREGULARIZED | dict(num_epochs=6, dev_steps=43),
    few_pairs=TINY | UNREGULARIZED | dict(num_epochs=60, batch_tokens=1024),
)


def trained_logdir(name) -> str:
    """The logdir of a model. Ends the program if the model is not trained."""
    logdir = FOLDER / name
    if not (logdir / "checkpoint").exists():
        sys.exit(f"{logdir}: no such model. Run: python docs/figures/train_models.py {name}")
    return str(logdir)


def run(script, **flags):
    """Run a script of the project."""
    command = [sys.executable, ROOT / script]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
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
    vocabulary = FOLDER / "vocabulary"
    if not vocabulary.exists():
        flags = {key: TINY[key] for key in ("recipe", "vocab_size")}
        run("prepro.py", preprocessed=vocabulary, **flags, **make_corpus(20_000))
    pairs = SMALL_PAIRS if name == "few_pairs" else 20_000
    text = make_corpus(pairs) | dict(preprocessed=vocabulary)
    run("train.py", logdir=FOLDER / name, keep_checkpoints=1, save_steps=0, **text, **MODELS[name])


def main():
    """Train the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME", default=[])
    names = parser.parse_args().names
    for name in names or MODELS:
        if names or not (FOLDER / name / "checkpoint").exists():
            train(name)


if __name__ == "__main__":
    main()
