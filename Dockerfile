# docker build -t transformer .                        for CPUs
# docker build -t transformer --build-arg GPU=1 .      for NVIDIA GPUs; run it with --gpus all
# docs/deploy.md has the commands that run it. Files are read and written in /work. Any user may run
# it, also one without a home folder: --user "$(id -u):$(id -g)" gives the files to you.
FROM python:3.11-slim-bookworm

ARG GPU=
WORKDIR /app
COPY requirements* ./
# The lock file has checksums, but no tensorflow-cpu: the image for CPUs is built without checksums.
RUN if [ -z "$GPU" ]; then pip install --no-cache-dir -r requirements-cpu.txt; else \
    pip install --no-cache-dir --require-hashes -r requirements.lock \
    && pip install --no-cache-dir -r requirements.txt "tensorflow[and-cuda]"; fi

COPY . .
RUN python -m compileall -q . && install -d -m 1777 /work
# Caches of programs that would look for a home folder.
ENV HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib PYTHONDONTWRITEBYTECODE=1
# It asks serve.py at its default port. A container that runs another script is always healthy.
HEALTHCHECK --start-period=60s CMD ! grep -q serve.py /proc/1/cmdline || \
    python -c "from urllib.request import urlopen as u; u('http://127.0.0.1:8080/health', timeout=9)"
USER nobody
WORKDIR /work
CMD ["python", "/app/serve.py", "--host", "0.0.0.0", "--logdir", "/app/docs/sample_model"]
