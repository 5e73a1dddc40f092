"""A registered student as MLflow serves it: text in, probabilities by class name out.

MLflow stores this file with the model ("model from code") and runs it wherever the model is loaded, so it imports
nothing of kdcore. Columns are named: under a plain string signature a second text would be dropped without a word.
"""

import inspect
from typing import Any

import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BATCH = 32


class Student(PythonModel):
    """Input: columns `text` and, for pairs, `text_pair`. Output: `label` and one `probability:NAME` per class; or
    `score` for a regression. One row out per row in, in order.

    The model's configuration says `max_length` (tokens) and `pair` (whether it reads two texts).
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load tokenizer and weights, once."""
        folder = context.artifacts["student"]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).to(self.device)
        self.model.eval()
        self.columns = ["text", "text_pair"] if context.model_config["pair"] else ["text"]
        self.max_length = int(context.model_config["max_length"])
        names = self.model.config.id2label
        self.labels = [names[place] for place in range(len(names))]
        self.accepted = set(inspect.signature(self.model.forward).parameters)
        if getattr(self.model.config, "type_vocab_size", 0) < 2:
            self.accepted.discard("token_type_ids")

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame,
                params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Score every row; a missing column or a value that is no text is a bad request."""
        texts = [self._texts(model_input, column) for column in self.columns]
        # Rows of like length share a batch: little padding, whatever the order of the request.
        order = sorted(range(len(texts[0])), key=lambda row: sum(len(column[row]) for column in texts))
        logits = torch.empty(len(order), len(self.labels), dtype=torch.float64)
        for start in range(0, len(order), BATCH):
            rows = order[start:start + BATCH]
            logits[rows] = self._logits([[column[row] for row in rows] for column in texts])
        return self._named(logits)

    def _texts(self, frame: pd.DataFrame, column: str) -> list[str]:
        if column not in frame.columns:
            raise _bad_request(f"column `{column}` is missing; send {' and '.join(self.columns)} with every row")
        values = frame[column].tolist()
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise _bad_request(f"`{column}` of row {row} is {type(value).__name__}, expected text; send rows as "
                                   "`dataframe_records` or `dataframe_split`")
        return values

    def _logits(self, texts: list[list[str]]) -> torch.Tensor:
        encoded = self.tokenizer(*texts, padding=True, truncation=True, max_length=self.max_length,
                                 return_tensors="pt")
        inputs = {name: value.to(self.device) for name, value in encoded.items() if name in self.accepted}
        with torch.inference_mode():
            return self.model(**inputs).logits.double().cpu()

    def _named(self, logits: torch.Tensor) -> pd.DataFrame:
        if not torch.isfinite(logits).all():
            raise MlflowException("the model gave values that are no numbers; its weights are damaged")
        if len(self.labels) == 1:
            return pd.DataFrame({"score": logits[:, 0].tolist()})
        probabilities = torch.softmax(logits, dim=1)
        chosen = [self.labels[place] for place in probabilities.argmax(dim=1).tolist()]
        return pd.DataFrame({"label": pd.Series(chosen, dtype=object)} | {
            f"probability:{name}": probabilities[:, place].tolist() for place, name in enumerate(self.labels)})


def _bad_request(message: str) -> MlflowException:
    return MlflowException.invalid_parameter_value(message)


set_model(Student())
