import { expect, test } from "vitest";
import { csv } from "../src/core/csv";
import { namesOption, python } from "../src/core/python";

test("the call names what is not the default", () => {
  const text = python("runs/a", {
    name: "heatmap",
    given: ["param_grad", "rms"],
    options: [
      ["steps", [0, 50]],
      ["phase", undefined],
      ["group_repeats", true],
      ["names", namesOption(["a=b"])],
    ],
  });
  expect(text).toBe(
    'import sonde\n\nrun = sonde.open("runs/a")\n' +
      'run.plot.heatmap("param_grad", "rms", steps=(0, 50), group_repeats=True, names={"a": "b"})\n',
  );
});

test("fields with commas, quotes and lines are quoted in a table", () => {
  expect(
    csv([
      ["a", 'b "c"'],
      [null, 1.5],
      ["x,y", "1\n2"],
    ]),
  ).toBe('a,"b ""c"""\r\n,1.5\r\n"x,y","1\n2"\r\n');
});
