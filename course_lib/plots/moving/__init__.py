"""Figures that a reader moves: a page of stills, and a script that shows the one that is chosen.

    shapes    the shapes of a still, and how a still is drawn
    figure    `Moving`: the stills by the settings of controls, as a page with the script and the style of `static`
    zero, units, cuts, regions, pipeline    the figures

Python draws every still, so that a formula stands once. The script only moves the shapes that two stills share.
"""

from .figure import Moving

__all__ = ["Moving"]
