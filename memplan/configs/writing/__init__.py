"""From a change of recipe to new text: drafts in every style, diffs, verification, and the change on disk."""
