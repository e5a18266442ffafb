"""Specs: what views answer. Plain frozen data, ready to draw, to send or to keep in a report.

A spec holds numbers, limits, labels and notes, and nothing of a framework, a protocol or a screen.
Arrays are numpy; `sonde.views.envelope` turns a spec into bytes and `sonde.views.typescript` writes
the same shapes for the page. Ids (`sonde.views.ids`) are opaque to whoever receives them.

Words used throughout:

* A *column* is a stretch of steps: all steps in `[k * stride, (k + 1) * stride)`, where `stride`
  is a power of two. Only columns in which something was recorded are there. Because they are
  aligned, a column never moves while a run grows; at times the stride doubles.
* A *flag* says what a cell holds: 0 nothing was recorded, 1 a number, 2 something not finite.
* `null` in place of a number: there is nothing to say.
"""

from sonde.views.specs.numbers import CrossSection as CrossSection
from sonde.views.specs.numbers import FormatLoss as FormatLoss
from sonde.views.specs.numbers import Heat as Heat
from sonde.views.specs.numbers import HeatRow as HeatRow
from sonde.views.specs.numbers import Kymograph as Kymograph
from sonde.views.specs.numbers import LayerRow as LayerRow
from sonde.views.specs.numbers import LayerTable as LayerTable
from sonde.views.specs.numbers import Line as Line
from sonde.views.specs.numbers import Lines as Lines
from sonde.views.specs.numbers import Mover as Mover
from sonde.views.specs.numbers import Movers as Movers
from sonde.views.specs.numbers import Named as Named
from sonde.views.specs.numbers import NodeTint as NodeTint
from sonde.views.specs.numbers import RowGroup as RowGroup
from sonde.views.specs.numbers import Tint as Tint
from sonde.views.specs.pairs import ComparedRuns as ComparedRuns
from sonde.views.specs.pairs import FarSite as FarSite
from sonde.views.specs.pairs import FirstDifference as FirstDifference
from sonde.views.specs.pairs import PairedHeat as PairedHeat
from sonde.views.specs.pairs import PairedSection as PairedSection
from sonde.views.specs.pairs import TwoValues as TwoValues
from sonde.views.specs.parts import EMPTY as EMPTY
from sonde.views.specs.parts import F32 as F32
from sonde.views.specs.parts import F64 as F64
from sonde.views.specs.parts import I32 as I32
from sonde.views.specs.parts import NONFINITE as NONFINITE
from sonde.views.specs.parts import NUMBER as NUMBER
from sonde.views.specs.parts import U8 as U8
from sonde.views.specs.parts import Aggregate as Aggregate
from sonde.views.specs.parts import Bounds as Bounds
from sonde.views.specs.parts import Columns as Columns
from sonde.views.specs.parts import Fact as Fact
from sonde.views.specs.parts import Failure as Failure
from sonde.views.specs.parts import Flow as Flow
from sonde.views.specs.parts import Instance as Instance
from sonde.views.specs.parts import Measure as Measure
from sonde.views.specs.parts import NodeKind as NodeKind
from sonde.views.specs.parts import Norm as Norm
from sonde.views.specs.parts import NoticeLevel as NoticeLevel
from sonde.views.specs.parts import Port as Port
from sonde.views.specs.parts import Problem as Problem
from sonde.views.specs.parts import RangeMode as RangeMode
from sonde.views.specs.parts import RunState as RunState
from sonde.views.specs.parts import RunStatus as RunStatus
from sonde.views.specs.parts import Scale as Scale
from sonde.views.specs.parts import ScaleChoice as ScaleChoice
from sonde.views.specs.parts import SiteRef as SiteRef
from sonde.views.specs.parts import VerdictWord as VerdictWord
from sonde.views.specs.runs import KindCount as KindCount
from sonde.views.specs.runs import Notice as Notice
from sonde.views.specs.runs import NumberName as NumberName
from sonde.views.specs.runs import RunHeader as RunHeader
from sonde.views.specs.runs import RunRow as RunRow
from sonde.views.specs.runs import Runs as Runs
from sonde.views.specs.runs import Server as Server
from sonde.views.specs.runs import Spark as Spark
from sonde.views.specs.runs import State as State
from sonde.views.specs.runs import StatisticName as StatisticName
from sonde.views.specs.runs import StepNote as StepNote
from sonde.views.specs.runs import StepRange as StepRange
from sonde.views.specs.runs import TimeAxis as TimeAxis
from sonde.views.specs.structure import Crumb as Crumb
from sonde.views.specs.structure import GraphLevel as GraphLevel
from sonde.views.specs.structure import Hit as Hit
from sonde.views.specs.structure import Hits as Hits
from sonde.views.specs.structure import LevelEdge as LevelEdge
from sonde.views.specs.structure import LevelNode as LevelNode
from sonde.views.specs.structure import MissingKind as MissingKind
from sonde.views.specs.structure import Panel as Panel
from sonde.views.specs.structure import PanelSection as PanelSection
from sonde.views.specs.structure import Tree as Tree
from sonde.views.specs.structure import TreeNode as TreeNode
from sonde.views.specs.traced import Matrix as Matrix
from sonde.views.specs.traced import SourceLine as SourceLine
from sonde.views.specs.traced import Variable as Variable
