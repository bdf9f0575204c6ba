"""From a change of recipe to new text: drafts in every style, diffs, proof, and the change on disk."""
