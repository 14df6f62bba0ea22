"""The frame of every page, and its style.

A Python string, because an app bundle of Flower need not hold other kinds of files.
"""

from string import Template

PHONE = "screen and (max-width: 700px)"

PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
$generator
<title>$title</title>
<meta name="color-scheme" content="light dark">
<style>
:root { --ink: #1d2733; --soft: #5b6b7c; --line: #e1e7ed; --paper: #ffffff; --back: #f5f7f9;
        --accent: #0b5c94; --rule: #c4ced8; --hover: #f4f8fb; color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #9fb0c0; --line: #2c3742; --paper: #171e25; --back: #0f1419;
          --accent: #6cb8ec; --rule: #465462; --hover: #1e2831; }
  /* Drawings are made for white paper: light and dark change places, hues stay. */
  figure img { filter: invert(.9) hue-rotate(180deg) saturate(1.4); }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.55 "Inter",
       "Segoe UI", system-ui, -apple-system, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 36px 28px 64px; }
.kicker { margin: 0; color: var(--accent); font-size: 12px; font-weight: 600;
          letter-spacing: .09em; text-transform: uppercase; }
h1 { margin: 4px 0 6px; font-size: 32px; line-height: 1.2; letter-spacing: -.015em;
     overflow-wrap: anywhere; }
h2 { margin: 0 0 6px; font-size: 19px; letter-spacing: -.01em; }
h3 { margin: 18px 0 2px; font-size: 14px; color: var(--soft); font-weight: 600; }
p { margin: 0 0 10px; max-width: 82ch; }
.subtitle { color: var(--soft); font-size: 17px; }
.made { color: var(--soft); font-size: 13.5px; max-width: none; }
.made code { color: var(--ink); font-size: 13px; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 1px;
         margin: 22px 0 0; background: var(--paper); border: 1px solid var(--line);
         border-radius: 10px; overflow: hidden; }
.facts div { box-shadow: 0 0 0 1px var(--line); padding: 12px 16px; }
.facts dt { color: var(--soft); font-size: 12.5px; }
.facts dd { margin: 2px 0 0; font-size: 20px; font-weight: 600; letter-spacing: -.01em;
            font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 20px 0 0; font-size: 13.5px; }
.framed nav { display: none; }
nav a { color: var(--accent); text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
          padding: 22px 26px 24px; margin: 20px 0 0; scroll-margin-top: 12px; }
.caption { color: var(--soft); font-size: 13.5px; margin: 0 0 12px; max-width: 112ch; }
figure { margin: 8px 0 0; }
figure + figure, figure + .table, .table + figure { margin-top: 20px; }
figure img { display: block; max-width: 100%; height: auto; }
/* Where columns are hidden on a side there is a shadow: the first two backgrounds cover it and
   scroll with the table. */
.table { overflow-x: auto;
         background: linear-gradient(to right, var(--paper) 16px, transparent) local,
                     linear-gradient(to left, var(--paper) 16px, transparent) right local,
                     linear-gradient(to right, var(--rule), transparent) scroll,
                     linear-gradient(to left, var(--rule), transparent) right scroll;
         background-size: 32px 100%, 32px 100%, 14px 100%, 14px 100%;
         background-repeat: no-repeat; }
pre { margin: 0; overflow-x: auto; }
.side { display: flex; flex-wrap: wrap; gap: 4px 72px; }
.side > div { min-width: 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 14px 6px 0; text-align: left; vertical-align: top;
         border-bottom: 1px solid var(--line); }
td { max-width: 640px; overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 600; font-size: 12.5px; white-space: nowrap;
           border-bottom: 1.5px solid var(--rule); }
tbody th { font-weight: 500; white-space: nowrap; }
tbody tr:hover { background: var(--hover); }
.number { text-align: right; padding-left: 18px; white-space: nowrap; }
ul { margin: 4px 0; padding-left: 20px; }
details { margin-top: 16px; }
summary { cursor: pointer; color: var(--accent); font-size: 13.5px; margin-bottom: 8px; }
@media $phone {
  main { padding: 20px 12px 40px; }
  h1 { font-size: 25px; }
  section { padding: 16px 14px 18px; }
  .facts { grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); }
  .facts div { padding: 9px 11px; }
  .facts dd { font-size: 17px; }
  figure img { width: 100%; max-width: 480px; }
  table { font-size: 13px; }
  th, td { padding-right: 8px; }
  .number { padding-left: 8px; }
  td.words { min-width: 120px; }
  /* Words that end a row of two or three cells stand below the others. */
  table:has(> thead .words:last-child:nth-child(-n + 3)),
  table:has(> thead .words:last-child:nth-child(-n + 3)) > tbody { display: block; }
  tr:has(> .words:last-child:nth-child(-n + 3)) {
    display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line); }
  tr:has(> .words:last-child:nth-child(-n + 3)) > * { border: 0; padding-bottom: 2px; }
  tr:has(> .words:last-child:nth-child(-n + 3)) > :first-child { font-weight: 600; }
  thead:has(.words:last-child:nth-child(-n + 3)) { display: none; }
  .words:last-child:nth-child(-n + 3) { grid-column: 1 / -1; }
}
@media print {
  body { background: #fff; font-size: 12px; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  section { border: 0; padding: 12px 0; }
  h2, h3, .caption { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .table { overflow: visible; background: none; }
  table { font-size: 11px; }
  th, td { padding: 3px 8px 3px 0; }
  .number { padding-left: 8px; }
  td { max-width: none; }
  /* Paper cannot be unfolded. */
  details::details-content { content-visibility: visible; block-size: auto; }
  summary { color: var(--soft); list-style: none; }
}
</style>
</head>
<body>
<main>
<header>
<p class="kicker">$kicker</p>
<h1>$title</h1>
$subtitle
$made
$facts
$links
</header>
$sections
</main>
</body>
</html>
""")
