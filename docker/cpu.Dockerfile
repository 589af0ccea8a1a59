# docker build -f docker/cpu.Dockerfile -t tf-amp .
# docker run --rm -v "$PWD:/work" -e TF_ENABLE_AUTO_MIXED_PRECISION=1 tf-amp python train.py
FROM python:3.12-slim
COPY . /tf-amp
RUN pip install --no-cache-dir ziglang '/tf-amp[cpu,report]' && pip uninstall -y ziglang
WORKDIR /work
CMD ["tf-amp", "doctor"]
