import type { ReactNode } from 'react';

type Column = ReactNode | { num: string };

const isNumber = (column: Column): column is { num: string } =>
  typeof column === 'object' && column !== null && 'num' in column;

/** A panel with rows under their headings, which are cards where the window is narrow. */
export const Table = (props: { columns: Column[]; wide?: boolean; children: ReactNode }) => (
  <div className={props.wide ? 'panel scrollx' : 'panel'}>
    <table className="table cardy">
      <thead>
        <tr>
          {props.columns.map((column, place) =>
            isNumber(column) ? (
              <th key={place} className="num">
                {column.num}
              </th>
            ) : (
              <th key={place}>{column}</th>
            ),
          )}
        </tr>
      </thead>
      <tbody>{props.children}</tbody>
    </table>
  </div>
);
