"""What do Ascend's tools report? npu-smi, hccn_tool and the version files, read without torch."""
