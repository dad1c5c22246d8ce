"""What a parameter is in the detector: all that an optimizer needs to know to give it its hyperparameters."""

from typing import NamedTuple


class ParameterRole(NamedTuple):
    """The place of one parameter."""

    part: str
    """encoder, projector, decoder, or head (everything else: class and box heads, queries, two-stage selection)."""
    kind: str
    """weight, bias, norm (a normalisation's scale or shift), scale (LayerScale), or embedding: what lies before the
    encoder's first block, which is class token, registers, positions and patches, or a pyramid's stem."""
    layers_above: int = 0
    """How often the encoder's layer-wise decay acts: 0 for its final norm and outside the encoder. With L = last
    feature block + 1: L - i for block i (from 0) and L + 1 for the embeddings. Of a pyramid: 1 for the last of timm's
    groups of layers and one more for each below, down to the stem."""
    hidden_matrix: bool = False
    """Whether it is a matrix between hidden layers, which Muon is made for: no embedding and no matrix of a head."""
