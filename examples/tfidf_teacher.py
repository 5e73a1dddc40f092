"""A teacher from another framework: TF-IDF and logistic regression (scikit-learn), written as files of answers.

    python examples/tfidf_teacher.py movies --study studies/mine

It takes the rows that the study's `params.yaml` declares, fits on the training ones and writes the files that
`datasets.NAME.data.teacher_files` names, so the way to a distilled student is: name the files, run this, `dvc repro`.

Answers to training rows are *out of fold*: the rows are cut into five parts, and each part is answered by a model that
was fitted on the other four. A model that has seen a row answers it with its label and near certainty, whatever it
would say of a row that it has not seen, so a student would learn from it little but the labels, which it has already.
Out of fold, the answers show what the teacher knows and what it does not. Answers to all other rows, those without
labels (`data.unlabelled`) too, come from a model that was fitted on all training rows.

Any other teacher does the same with its own model in place of `fit`: columns `id` and `probability:NAME` (or
`logit:NAME`) for every class; `docs/params.md` has the details.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline

from kdcore import config
from kdcore.data.answers import PROBABILITY
from kdcore.data.assemble import HELD_OUT, Assembled, assemble
from kdcore.data.parts import Part

FOLDS = 5
NO_LIMIT = 10**9
"""Tokens; scikit-learn reads whole texts."""


class Words(BaseEstimator, TransformerMixin):
    """TF-IDF of words and pairs of words. Of two texts, what they share and what sets them apart."""

    def fit(self, texts: np.ndarray, _: object = None) -> "Words":
        """`texts` [n, 1 or 2]."""
        self.weights_ = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit(texts.ravel())
        return self

    def transform(self, texts: np.ndarray) -> sparse.csr_matrix:
        """[n, words]; twice as many columns for two texts."""
        one, *other = (self.weights_.transform(column) for column in texts.T)
        return sparse.hstack([one.multiply(other[0]), abs(one - other[0])]).tocsr() if other else one


def fit() -> Pipeline:
    """A model of texts and class ids, not yet fitted."""
    return make_pipeline(Words(), LogisticRegression(max_iter=1000))


def main() -> None:
    """Fit, write, and say how good the answers are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--study", type=Path, default=Path())
    arguments = parser.parse_args()
    data = config.load(arguments.study / "params.yaml").dataset(arguments.dataset).data
    files = data.teacher_files or {}
    rows = assemble(arguments.study, arguments.dataset, data.model_copy(update={"teacher_files": None}), NO_LIMIT)
    if rows.labels is None or "train" not in files:
        parser.error(f"{arguments.dataset} has scores, or no datasets.{arguments.dataset}.data.teacher_files.train")
    for file, table in answers(rows, files).items():
        path = arguments.study / file
        match path.suffix.lower():
            case ".parquet":
                table.to_parquet(path, index=False)
            case ".jsonl":
                table.to_json(path, orient="records", lines=True)
            case ending:
                table.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
        print(f"{path}: {len(table):,} answers")


def answers(rows: Assembled, files: dict[str, str]) -> dict[str, pd.DataFrame]:
    """The table of each file: out-of-fold answers to training rows, those of a model of all of them to the rest."""
    assert rows.labels is not None
    train, *others = rows.parts
    known = train.choose(train.has_label)
    texts, labels = read(known)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    honest = cross_val_predict(fit(), texts, labels, cv=folds, method="predict_proba")
    model = fit().fit(texts, labels)
    seen = np.mean(model.predict(texts) == labels)
    print(f"accuracy on training rows: {100 * np.mean(honest.argmax(1) == labels):.1f} out of fold, {100 * seen:.1f} "
          "by a model that has seen them")
    asked = [(train.name, known), *((train.name if part.name == HELD_OUT else part.name, part) for part in others)]
    if rows.unlabelled is not None:  # further rows of the training split, or of a file
        further = rows.unlabelled.source == train.source
        asked.append((train.name if further else rows.unlabelled.name, rows.unlabelled))
    tables: dict[str, list[pd.DataFrame]] = {}
    for split, part in asked:
        file = files.get(split)
        if file is not None:
            found = honest if part is known else model.predict_proba(read(part)[0])
            names = [f"{PROBABILITY}{label}" for label in rows.labels]
            table = pd.DataFrame(found, columns=[names[label] for label in np.unique(labels)])
            table = table.reindex(columns=names, fill_value=0.0)  # no training row has that label
            table.insert(0, "id", part.ids.to_pylist())
            tables.setdefault(file, []).append(table)
    return {file: pd.concat(found) for file, found in tables.items()}


def read(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The texts [n, 1 or 2] and the class ids [n] of a split."""
    table = part.rows.table
    columns = [table.column(name).to_numpy() for name in ("text", "text_pair") if name in table.column_names]
    return np.stack(columns, axis=1), table.column("label").to_numpy()


if __name__ == "__main__":
    main()
