"""Train a translator from two files in one command, and show what it can do.

    python quickstart.py my.de my.en --minutes 30
    python quickstart.py my.tsv --source_lang zh --target_lang en

The text is cleaned and divided, a recipe is chosen by its size, a model is trained for some minutes
and scored. Each step is a command, which is printed first. After a stop, the same command resumes.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from support.cli import run_script
from support.errors import InputError
from support.files import atomic_write, file_digest
from support.flags import Parser, cpu_info, expand_path

ROOT = Path(__file__).resolve().parent
# Recipes by the number of pairs, up to this one. `paper` is for a GPU.
RECIPES = {10_000: "low_resource", 50_000: "tiny", 10**9: "small"}
TABLES = (".tsv", ".csv", ".tmx")
MAX_TEST_PAIRS = 1000  # and as many for development; at most a twentieth of the pairs
SAMPLES = 10  # test sentences that are shown
EXAMPLES = 3  # for the page
RECORD = re.compile("^- source: (.*)\n- expected: (.*)\n- got: (.*)$", re.MULTILINE)


def run(script, *flags):
    """Print a command, and run it. The program ends if it fails, and gives it its signals."""
    words = [script, *map(str, flags)]
    print(f"\n$ {shlex.join(['python', *words])}", flush=True)
    command = [sys.executable, ROOT / script, *words[1:]]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            process.wait()
        except KeyboardInterrupt as error:
            process.send_signal(error.args[0])
            process.wait()
            raise
    if code := process.returncode:  # it has printed why; a signal gives -number
        sys.exit(code if code > 0 else 128 - code)


def choose_languages(args) -> list[str]:
    """Return the languages of source and target, from the flags or the files' suffixes."""
    files = ["", ""] if is_table(args.files[0]) else args.files  # a table names no language
    suffixes = [Path(path.removesuffix(".gz")).suffix[1:] for path in files]
    languages = [args.source_lang or suffixes[0], args.target_lang or suffixes[1]]
    codes = [re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", language) for language in languages]
    if not all(codes) or languages[0] == languages[1]:
        raise InputError(
            f"{' '.join(args.files)}: the names do not end in two languages, as my.de and my.en."
            " Give --source_lang and --target_lang, codes such as de and en"
        )
    return languages


def prepare_text(args, folder, languages) -> dict:
    """Convert, clean and divide the text. Return the flags of the training."""
    text, cleaned, divided = folder / "text", folder / "cleaned", folder / "split"
    for path in (text, cleaned, divided):  # of a run that was stopped
        shutil.rmtree(path, ignore_errors=True)
    names, files = [f"text.{language}" for language in languages], args.files
    if is_table(files[0]):
        sides = ",".join(languages) if ".tmx" in files[0].lower() else "1,2"
        files = [text / name for name in names]
        run("corpora/convert.py", *args.files, *files, "--sides", sides)
    run("corpora/clean.py", *files, "--output", cleaned)
    files = [
        (cleaned / Path(path).name.removesuffix(".gz")).rename(cleaned / name)
        for path, name in zip(files, names, strict=True)
    ]
    with open(files[0], "rb") as file:
        num_pairs = sum(1 for _ in file)
    size = min(MAX_TEST_PAIRS, max(1, num_pairs // 20))
    run("corpora/split.py", *files, "--output", divided, "--dev", size, "--test", size)
    recipe = next(name for most, name in RECIPES.items() if num_pairs <= most)
    flags = dict(recipe=recipe, source_lang=languages[0], target_lang=languages[1])
    for part in ("train", "dev", "test"):
        for side, language in zip(("source", "target"), languages, strict=True):
            flags[f"{side}_{part}"] = divided / f"{part}.{language}"
    precision = "bfloat16" if "bf16" in cpu_info() else "float32"
    return flags | dict(logdir=folder, preprocessed=folder / "preprocessed", precision=precision)


def show_samples(folder):
    """Print test sentences from the worst to the best by chrF; the page gets the best ones."""
    from sacrebleu import sentence_chrf

    newest = max((folder / "results").iterdir(), key=lambda path: path.stat().st_mtime)
    rows = RECORD.findall(newest.read_text("utf-8"))
    rows.sort(key=lambda row: sentence_chrf(row[2], [row[1]]).score)
    rows = [rows[i * (len(rows) - 1) // (SAMPLES - 1)] for i in range(SAMPLES)]
    for source, expected, got in rows:
        print(f"\n{source}\n  reference:   {expected}\n  translation: {got}")
    examples = dict.fromkeys(source for source, *_ in rows[-EXAMPLES:])
    atomic_write(folder / "examples.txt", "".join(f"{source}\n" for source in examples))


def main(args):
    """Run the steps that are left, and print the next commands."""
    languages = choose_languages(args)
    folder = Path(args.logdir or f"logdir/{'-'.join(languages)}")
    path, digests = folder / "flags", [file_digest(own).hexdigest()[:12] for own in args.files]
    of_text = f"# {' '.join([*(Path(own).name for own in args.files), *languages, *digests])}\n"
    if folder.exists() and not path.exists():  # folders in it will be deleted
        raise InputError(f"{folder}: was not made by quickstart.py. Choose another --logdir")
    if not path.exists() or path.read_text("utf-8").count("\n") == 1:  # not prepared yet
        atomic_write(path, of_text)
        flags = prepare_text(args, folder, languages).items()
        lines = (f"--{name} {shlex.quote(str(value))}\n" for name, value in flags)
        atomic_write(path, "".join([of_text, *lines]))
    if not path.read_text("utf-8").startswith(of_text):
        raise InputError(f"{path}: is of another text. Choose another --logdir")
    if not (folder / "run.json").exists():
        run("prepro.py", f"@{path}")
    run("train.py", f"@{path}", "--minutes", f"{args.minutes:g}")
    run("eval.py", "--logdir", folder, "--results", folder / "results")
    shutil.rmtree(folder / "export", ignore_errors=True)
    run("export.py", "--logdir", folder, "--format", "logdir", "--output", folder / "export")
    show_samples(folder)
    print(f"\n{path} has the chosen flags, {folder}/export a model to give away. Type next:")
    for words, meaning in (
        (("translate.py", "--logdir", folder), "translates what you type"),
        (("serve.py", "--logdir", folder), "serves a page"),
        (("train.py", f"@{path}", "--minutes", f"{2 * args.minutes:g}"), "trains longer"),
    ):
        print(f"  {shlex.join(['python', *map(str, words)])}  # {meaning}")


def is_table(path) -> bool:
    """Whether one file has both sides."""
    return Path(path.lower().removesuffix(".gz")).suffix in TABLES


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
    files = "two files of different names, or one TMX, TSV or CSV file (columns 1 and 2)"
    parser.add_argument("files", nargs="+", type=expand_path, help=files)
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="of training, in all runs (%(default)s)")
    add("--source_lang", help="its code, such as de (default: the end of the file's name)")
    add("--target_lang", help="its code")
    add("--logdir", type=expand_path, help="folder for all (default: logdir/SOURCE-TARGET)")
    args = parser.parse_args()
    names = {Path(path).name.removesuffix(".gz") for path in args.files}
    if not len(args.files) == len(names) == 2 - is_table(args.files[0]):
        parser.error(f"give {files}")
    if not 0 < args.minutes < 1e6:
        parser.error(f"--minutes {args.minutes:g}: give a number above 0")
    return args


if __name__ == "__main__":
    run_script(main, parse_args())
