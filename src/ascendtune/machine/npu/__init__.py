"""What Ascend's own tools say: npu-smi, hccn_tool and the version files; all of it read without torch."""
