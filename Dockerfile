# The course in a container, with the lessons at http://localhost:8888 (the token is in the log):
#
#     docker build --tag sharded .
#     docker run --rm --publish 8888:8888 --volume sharded:/learner sharded
#
# On a server with GPUs: --build-arg TORCH=cu130 and `docker run --gpus all --shm-size 8g`.
FROM python:3.12-slim-bookworm

# cpu, or a CUDA version of PyTorch's index, such as cu130
ARG TORCH=cpu

WORKDIR /course
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY course_lib course_lib
COPY notebooks notebooks
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/$TORCH \
    --constraint constraints.txt '.[cluster]' && rm -rf /course

RUN useradd --create-home --home-dir /learner learner
USER learner
WORKDIR /learner
EXPOSE 8888
CMD ["course", "lab", "--no-browser", "--ip", "0.0.0.0", "--port", "8888"]
