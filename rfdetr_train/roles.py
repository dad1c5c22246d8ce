"""What a parameter is in the detector: all that an optimizer needs to know to give it its hyperparameters."""

from typing import NamedTuple


class ParameterRole(NamedTuple):
    """The place of one parameter."""

    part: str
    """encoder, projector, decoder, or head (everything else: class and box heads, queries, two-stage selection)."""
    kind: str
    """weight, bias, norm (a normalisation's scale or shift), embedding (class token, positions, patches), or scale
    (LayerScale)."""
    layers_above: int = 0
    """How often the encoder's layer-wise decay acts: 0 for its final norm and outside the encoder. With L = last
    feature block + 1: L - i for block i (from 0) and L + 1 for the embeddings."""
    hidden_matrix: bool = False
    """Whether it is a matrix between hidden layers, which Muon is made for: no embedding and no matrix of a head."""
