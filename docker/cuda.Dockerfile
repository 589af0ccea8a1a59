# docker build -f docker/cuda.Dockerfile -t tf-amp-cuda .
# docker run --rm --gpus all -v "$PWD:/work" -e TF_ENABLE_AUTO_MIXED_PRECISION=1 \
#     tf-amp-cuda python train.py
# CUDA and cuDNN come with TensorFlow's wheels; the host needs the driver alone.
FROM python:3.12-slim
COPY . /tf-amp
RUN pip install --no-cache-dir ziglang '/tf-amp[cuda,report]' && pip uninstall -y ziglang
WORKDIR /work
CMD ["tf-amp", "doctor"]
