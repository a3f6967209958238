# Python 3.11 to 3.13. Name another one with `make demo PYTHON=...`.
# `make install CPU=1` installs TensorFlow without CUDA. Give CPU=1 to the other targets, too.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY = .venv/bin/python
# As many as there are processors. On two processors, three took longer: 377 s, not 256 s.
TESTS_AT_ONCE = $$(getconf _NPROCESSORS_ONLN)

S = corpora/sample
DEMO = --source_train $S/train.tags.de-en.de --target_train $S/train.tags.de-en.en \
       --source_dev $S/IWSLT16.TED.dev2010.de-en.de.xml --target_dev $S/IWSLT16.TED.dev2010.de-en.en.xml \
       --source_test $S/IWSLT16.TED.tst2014.de-en.de.xml --target_test $S/IWSLT16.TED.tst2014.de-en.en.xml \
       --preprocessed preprocessed/demo --logdir logdir/demo --results results/demo
DEMO_MODEL = --maxlen 15 --min_cnt 2 --hidden_units 128 --num_blocks 2 --num_heads 4 \
       --batch_size 64 --lr 0.001 --num_epochs 6

.PHONY: install demo test test-slow soak lint lock canary

install: .venv/installed

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	    { echo "Python 3.11 to 3.13 is needed. Install it, or name it: make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install -r requirements$(if $(CPU),-cpu).txt
	touch $@

.venv/installed-tests: .venv/installed tests/requirements.txt
	$(PY) -m pip install -r tests/requirements.txt
	touch $@

demo: .venv/installed
	$(PY) corpora/sample.py --output $S
	$(PY) prepro.py $(DEMO)
	$(PY) train.py $(DEMO) $(DEMO_MODEL)
	$(PY) eval.py --logdir logdir/demo

PYTEST = -m pytest -n $(TESTS_AT_ONCE) --maxprocesses 4 --dist loadscope --no-loadscope-reorder

test: .venv/installed-tests
	$(PY) $(PYTEST)

# The tests that take longest: complete trainings, real text, benchmarks, commands of all documents.
test-slow: .venv/installed-tests
	SLOW=1 $(PY) $(PYTEST) -m slow

# Random input by the ten thousands, training killed twenty times. It prints each test and its time.
soak: .venv/installed-tests
	KILLS=20 SLOW=1 SOAK=1 $(PY) -m pytest -v --durations=0 -p no:xdist -o timeout=20000 \
	    tests/test_fuzz.py tests/test_resume.py tests/test_distribute.py

lint: .venv/installed-tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# The versions of all packages that requirements.txt needs, with checksums, for every platform.
lock: .venv/installed
	$(PY) -m pip install uv
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --custom-compile-command "make lock" requirements.txt --output-file requirements.lock

# The fast tests with the newest pre-releases of TensorFlow and Keras, in an environment of their own.
CANARY = build/canary
canary:
	$(PYTHON) -m venv --clear $(CANARY)
	sed '/^tensorflow>/d; /^keras>/d' requirements.txt > $(CANARY)/requirements.txt
	$(CANARY)/bin/python -m pip install -r $(CANARY)/requirements.txt -r tests/requirements.txt
	$(CANARY)/bin/python -m pip install --pre --upgrade tensorflow keras
	$(CANARY)/bin/python $(PYTEST)
