# The public names of `compaction_store.evaluation`, and the module of each.

from compaction_store.evaluation.asking import Examiner as Examiner
from compaction_store.evaluation.evaluator import evaluate as evaluate
from compaction_store.evaluation.judge import Judge as Judge
from compaction_store.evaluation.judge import JudgeVerdict as JudgeVerdict
from compaction_store.evaluation.judge import SummarizerUse as SummarizerUse
from compaction_store.evaluation.money import FoldMoney as FoldMoney
from compaction_store.evaluation.money import ModelPrice as ModelPrice
from compaction_store.evaluation.money import Money as Money
from compaction_store.evaluation.money import Prices as Prices
from compaction_store.evaluation.replay import RECORDED as RECORDED
from compaction_store.evaluation.replay import ModelCall as ModelCall
from compaction_store.evaluation.replay import Policy as Policy
from compaction_store.evaluation.replay import RecordedThread as RecordedThread
from compaction_store.evaluation.replay import Replayed as Replayed
from compaction_store.evaluation.replay import read_thread as read_thread
from compaction_store.evaluation.replay import replay as replay
from compaction_store.evaluation.results import Difference as Difference
from compaction_store.evaluation.results import Evaluation as Evaluation
from compaction_store.evaluation.results import Judged as Judged
from compaction_store.evaluation.results import PolicyResult as PolicyResult
from compaction_store.evaluation.results import Rate as Rate
