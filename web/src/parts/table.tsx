import type { ReactNode } from 'react';

type Column = ReactNode | { num: string };

const isNumber = (column: Column): column is { num: string } =>
  typeof column === 'object' && column !== null && 'num' in column;

/** A panel with rows under their headings, which are cards where the window is narrow. */
export const Table = (props: {
  columns: Column[];
  wide?: boolean;
  className?: string;
  children: ReactNode;
}) => (
  <div className={props.wide ? 'panel scrollx' : 'panel'}>
    <table className={`table cardy ${props.className ?? ''}`}>
      <thead>
        <tr>
          {props.columns.map((column, place) => {
            if (isNumber(column)) {
              return (
                <th key={place} className="num">
                  {column.num}
                </th>
              );
            }
            // A screen reader would announce an empty heading as one without a name.
            return column === '' ? <td key={place} /> : <th key={place}>{column}</th>;
          })}
        </tr>
      </thead>
      <tbody>{props.children}</tbody>
    </table>
  </div>
);
