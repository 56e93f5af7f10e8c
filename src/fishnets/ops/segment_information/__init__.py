"""Raw network outputs and groups in, summed score and packed Fisher matrix per group out."""

from fishnets.ops.segment_information.reference import segment_information, segment_sum

__all__ = ["segment_information", "segment_sum"]
