# docker build -t transformer .                        for CPUs
# docker build -t transformer --build-arg GPU=1 .      for NVIDIA GPUs; run it with --gpus all
#
# docker run --rm -it -v "$PWD/work:/work" transformer python /app/train.py ...
# docker run --rm -p 8080:8080 -v "$PWD/work:/work" transformer \
#     python /app/serve.py --host 0.0.0.0 --logdir logdir
# docker run --rm transformer make -C /app demo
#
# Files are read and written in /work. Any user may run it, also one without a home folder:
# --user "$(id -u):$(id -g)" gives the files to you.
FROM python:3.11-slim-bookworm

ARG GPU=
RUN apt-get update && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.txt requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock \
    && if [ -n "$GPU" ]; then pip install --no-cache-dir -r requirements.txt "tensorflow[and-cuda]"; fi

COPY . .
# make finds the packages in .venv. Any user may run the demo.
RUN python -m compileall -q . && ln -s /usr/local .venv && touch .venv/installed \
    && install -d -m 1777 /work logdir preprocessed results corpora/sample
# Caches of programs that would look for a home folder.
ENV HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib PYTHONDONTWRITEBYTECODE=1
USER nobody
WORKDIR /work
CMD ["python", "/app/train.py", "--help"]
