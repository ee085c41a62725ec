# UNVERIFIED: written from documents, never built on an Ascend machine.
#
#   docker build -f docker/ascend.Dockerfile -t ascendtune:ascend .
#   docker run --rm -it --ipc=host \
#     --device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc \
#     -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro -v /usr/local/dcmi:/usr/local/dcmi:ro \
#     -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro -v /etc/ascend_install.info:/etc/ascend_install.info:ro \
#     -v "$PWD:/work" -w /work ascendtune:ascend ascendtune train recipe.yaml
#
# The tag is <CANN>-<chip>-<system>-<Python>, chip 910b (Atlas A2) or a3 (gitee.com/ascend/cann-container-image).
# Its CANN belongs to the torch and torch-npu in constraints/aarch64-ascend.txt: change them together.
ARG CANN=9.1.0-910b-ubuntu22.04-py3.12
FROM quay.io/ascend/cann:${CANN}

COPY pyproject.toml README.md LICENSE /opt/ascendtune/
COPY constraints/aarch64-ascend.txt /opt/ascendtune/constraints/
COPY src /opt/ascendtune/src
RUN pip install --no-cache-dir --constraint /opt/ascendtune/constraints/aarch64-ascend.txt '/opt/ascendtune[npu]'

# set_env.sh has to run in the shell that starts the program; `RUN source` would end with its layer.
ENTRYPOINT ["/bin/bash", "-c", "source /usr/local/Ascend/ascend-toolkit/set_env.sh && exec \"$@\"", "--"]
CMD ["ascendtune", "--help"]
